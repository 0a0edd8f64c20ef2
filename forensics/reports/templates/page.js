"use strict";
// Shared by the scripts below: elements, data blocks, number formats, theme, navigation, copying, printing.
const page = (() => {
  const $ = (q, root = document) => root.querySelector(q);
  const $$ = (q, root = document) => [...root.querySelectorAll(q)];
  const parsed = new Map();
  const data = name => {
    if (!parsed.has(name)) {
      const e = document.getElementById("data-" + name);
      parsed.set(name, e ? JSON.parse(e.textContent) : null);
    }
    return parsed.get(name);
  };
  const el = (tag, text, cls) => {
    const e = document.createElement(tag);
    if (text !== undefined && text !== null) e.textContent = text;
    if (cls) e.className = cls;
    return e;
  };
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // ---- numbers
  const formats = new Map();  // making one takes longer than using it a thousand times
  const write = (v, least, most) => {
    const key = least * 32 + most;
    if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en", {minimumFractionDigits: least, maximumFractionDigits: most}));
    return minus(formats.get(key).format(v));
  };
  const minus = s => s.replace(/^-/, "\u2212");
  const num = (v, digits) => {
    if (v === null || v === undefined) return "";
    if (typeof v !== "number") return String(v);
    const a = Math.abs(v);
    if (digits !== undefined) return write(v, digits, digits);
    if (Number.isInteger(v)) return write(v, 0, 0);
    if (a >= 1e7 || a < 1e-3) return minus(v.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e"));
    return write(v, 0, a >= 1000 ? 0 : a >= 100 ? 1 : a >= 1 ? 3 : a >= 0.1 ? 4 : 6);
  };

  // ---- theme
  const root = document.documentElement, button = $("#theme"), listeners = [];
  const theme = name => {
    root.dataset.theme = name;
    if (button) button.textContent = name === "dark" ? "Light" : "Dark";
    listeners.forEach(f => f());
  };
  if (button) button.addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

  // ---- printing: light, everything unfolded
  let before = "";
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    theme("light");
    $$("details:not([open])").forEach(d => { d.open = true; d.dataset.printed = ""; });
  });
  addEventListener("afterprint", () => {
    theme(before);
    $$("details[data-printed]").forEach(d => { d.open = false; delete d.dataset.printed; });
  });

  // ---- copying
  for (const b of $$("button[data-copy]")) {
    b.addEventListener("click", async () => {
      const pre = $("pre", b.parentElement);
      let said = "Copied";
      try {
        await navigator.clipboard.writeText(pre.textContent);
      } catch {
        const r = document.createRange(), s = getSelection();
        r.selectNodeContents(pre);
        s.removeAllRanges();
        s.addRange(r);
        said = "Selected";
      }
      const old = b.textContent;
      b.textContent = said;
      setTimeout(() => { b.textContent = old; }, 1500);
    });
  }

  // ---- which section is on the screen
  const links = new Map($$("nav.side a").map(a => [a.getAttribute("href").slice(1), a]));
  const seen = new IntersectionObserver(entries => {
    for (const e of entries) if (e.isIntersecting) {
      links.forEach(a => a.removeAttribute("aria-current"));
      links.get(e.target.id)?.setAttribute("aria-current", "true");
    }
  }, {rootMargin: "0px 0px -80% 0px"});
  for (const id of links.keys()) { const s = document.getElementById(id); if (s) seen.observe(s); }

  return {$, $$, data, el, css, num, theme, onTheme: f => listeners.push(f)};
})();
