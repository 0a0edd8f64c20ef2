"use strict";
// The document view: facts and text in pieces. All text is set as text, never as markup.
(() => {
  const {$, $$, data, el, num} = page;
  const docs = data("documents") || {};
  const CLASSES = [0.25, 0.5, 1.01];  // bounds of the three strengths of heat

  function heat(piece, strength, value, inside) {
    const s = el("span", piece, "heat h" + (1 + CLASSES.findIndex(c => strength < c || c > 1)) + (inside ? " evidence" : ""));
    const color = strength > 0 ? "var(--c1)" : "var(--c0)";
    s.style.background = `color-mix(in srgb, ${color} ${Math.round(Math.min(1, Math.abs(strength)) * 65)}%, transparent)`;
    if (value !== undefined && value !== null) s.title = num(value) + " nats";
    return s;
  }
  function heatKey(range) {
    const p = el("p", `loss per token, from ${num(range[0])}`, "soft small"), key = el("span", null, "heatkey");
    for (const s of [-1, -.6, -.25, 0, .25, .6, 1]) {
      const i = el("i");
      i.style.background = `color-mix(in srgb, ${s > 0 ? "var(--c1)" : "var(--c0)"} ${Math.round(Math.abs(s) * 65)}%, transparent)`;
      key.append(i);
    }
    p.append(key, `to ${num(range[1])} nats and more (bold); the number is in each token's title`);
    return p;
  }
  page.openDocument = (key, jump, into) => {
    const view = document.getElementById(into || "document");
    if (!view) return;
    const d = key === null ? null : docs[String(key)];
    view.textContent = "";
    if (!d) {
      const p = el("p", null, "none");
      p.append("No text of this row is kept here: only the first suspected documents have one.");
      if (key !== null) p.append(" To print it: ", el("code", `forensics show CASE --doc ${key}`));
      view.append(p);
    } else {
      view.append(el("h3", d.title));
      const facts = el("dl", null, "facts");
      for (const [k, v] of d.facts) facts.append(el("dt", k), el("dd", num(v)));
      view.append(facts);
      for (const part of d.parts) {
        if (part.label) view.append(el("p", part.label, "soft small"));
        if (part.range) view.append(heatKey(part.range));
        const box = el("div", null, "doc");
        box.tabIndex = 0;
        box.dir = "auto";
        box.setAttribute("role", "region");
        box.setAttribute("aria-label", "text of " + d.title);
        for (const [text, kind, strength, value, inside] of part.pieces) {
          if (kind === "heat") box.append(heat(text, strength, value, inside));
          else if (kind) box.append(el(kind === "mark" ? "mark" : "span", text, kind));
          else box.append(text);
        }
        view.append(box);
      }
    }
    if (jump) view.scrollIntoView({block: "nearest"});
  };
  for (const b of $$("[data-open]")) b.addEventListener("click", () => page.openDocument(b.dataset.open, true));
  dispatchEvent(new Event("documents-ready"));
  document.documentElement.dataset.ready = "yes";
})();
