"use strict";
(() => {
  const $ = (q, root = document) => root.querySelector(q), $$ = (q, root = document) => [...root.querySelectorAll(q)];
  const data = name => { const e = document.getElementById("data-" + name); return e ? JSON.parse(e.textContent) : null; };
  const el = (tag, text, cls) => { const e = document.createElement(tag); if (text !== undefined && text !== null) e.textContent = text; if (cls) e.className = cls; return e; };
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const num = v => v === null || v === undefined ? "" : typeof v !== "number" ? String(v) : Number.isInteger(v) ? v.toLocaleString("en") : Math.abs(v) >= 1e6 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(2) : v.toLocaleString("en", {maximumFractionDigits: 4});

  // ---- theme
  const root = document.documentElement, themeButton = $("#theme");
  const setTheme = t => { root.dataset.theme = t; if (themeButton) themeButton.textContent = t === "dark" ? "Light" : "Dark"; drawCharts(); };
  if (themeButton) themeButton.addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

  // ---- copy
  for (const b of $$("button[data-copy]")) b.addEventListener("click", async () => {
    const text = $("pre", b.parentElement).textContent;
    try { await navigator.clipboard.writeText(text); } catch { const r = document.createRange(); r.selectNodeContents($("pre", b.parentElement)); const s = getSelection(); s.removeAllRanges(); s.addRange(r); }
    const old = b.textContent; b.textContent = "Copied"; setTimeout(() => { b.textContent = old; }, 1200);
  });

  // ---- charts
  let charts = [], axis = "step";
  const sync = typeof uPlot === "undefined" ? null : uPlot.sync("x");
  function bands(spec) {
    return u => {
      const ctx = u.ctx, {top, height, left, width} = u.bbox;
      const place = step => { const x = spec.x.step, xs = u.data[0]; let i = 0; while (i < x.length - 1 && x[i] < step) i++; return u.valToPos(xs[i], "x", true); };
      ctx.save(); ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
      for (const b of spec.bands || []) { const a = place(b.start), z = place(b.stop); ctx.fillStyle = css(b.color); ctx.fillRect(a, top, Math.max(2, z - a), height); }
      for (const m of spec.marks || []) { const a = place(m.step); ctx.strokeStyle = css(m.color); ctx.lineWidth = 1.5; ctx.setLineDash(m.dash || []); ctx.beginPath(); ctx.moveTo(a, top); ctx.lineTo(a, top + (m.tick ? 9 : height)); ctx.stroke(); }
      ctx.restore();
    };
  }
  function drawCharts() {
    if (!sync) return;
    for (const c of charts) c.destroy();
    charts = [];
    for (const box of $$(".chart[data-chart]")) {
      const spec = data(box.dataset.chart);
      if (!spec) continue;
      box.textContent = "";
      const xs = spec.x[axis] || spec.x.step;
      const opts = {
        width: Math.max(260, box.clientWidth), height: spec.height || 190, cursor: {sync: {key: sync.key, setSeries: false}}, legend: {live: true},
        scales: {x: {time: axis === "time" && !!spec.x.time}, y: spec.log ? {distr: 3} : {}},
        axes: [{stroke: css("--soft"), grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line")}}, {stroke: css("--soft"), size: 58, label: spec.unit, labelSize: 18, grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line")}, values: (u, v) => v.map(n => n === null ? "" : num(n))}],
        series: [{label: axis}, ...spec.series.map((s, i) => ({label: s.label, stroke: css("--c" + (s.color ?? i)), width: s.width || 1.2, dash: s.dash, spanGaps: !!s.span, points: {show: !!s.points, size: 4}, value: (u, v) => num(v)}))],
        hooks: {drawClear: [bands(spec)]},
      };
      charts.push(new uPlot(opts, [xs, ...spec.series.map(s => s.values)], box));
    }
  }
  for (const b of $$("button[data-axis]")) b.addEventListener("click", () => { axis = b.dataset.axis; $$("button[data-axis]").forEach(o => o.setAttribute("aria-pressed", String(o === b))); drawCharts(); });
  let timer = 0; addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(drawCharts, 120); });

  // ---- tables
  const PAGE = 50;
  function table(box) {
    const spec = data(box.dataset.table); if (!spec) return;
    const n = spec.rows, col = spec.columns, state = {sort: spec.sort ?? -1, down: spec.down ?? true, page: 0, text: "", pick: {}};
    const values = name => col.find(c => c.name === name).values;
    const tools = el("div", null, "tools"), search = el("input"); search.type = "search"; search.placeholder = "filter rows"; search.setAttribute("aria-label", "filter rows of " + spec.label);
    const count = el("span", "", "soft small"), back = el("button", "‹ previous"), next = el("button", "next ›");
    tools.append(search);
    for (const c of col.filter(c => c.choose)) {
      const s = el("select"); s.setAttribute("aria-label", c.label); s.append(new Option("all " + c.label, ""));
      [...new Set(c.values.flat())].filter(v => v !== null).sort().forEach(v => s.append(new Option(v, v)));
      s.addEventListener("change", () => { state.pick[c.name] = s.value; state.page = 0; draw(); }); tools.append(s);
    }
    tools.append(back, next, count);
    const scroll = el("div", null, "scroll"), t = el("table"), head = el("thead"), body = el("tbody"), tr = el("tr");
    const shown = col.filter(c => !c.hidden);
    shown.forEach(c => { const th = el("th", null, c.number ? "n" : ""), b = el("button", c.label); th.scope = "col"; if (c.title) b.title = c.title;
      b.addEventListener("click", () => { const i = col.indexOf(c); if (state.sort === i) state.down = !state.down; else { state.sort = i; state.down = !!c.number; } state.page = 0; draw(); }); th.append(b); tr.append(th); });
    head.append(tr); t.append(head, body); scroll.append(t); box.append(tools, scroll);
    const cell = (c, i) => { const v = c.values[i]; return Array.isArray(v) ? v.join(", ") : num(v); };
    let order = [];
    function draw() {
      const q = state.text.toLowerCase(), rows = [];
      for (let i = 0; i < n; i++) {
        if (q && !col.some(c => cell(c, i).toLowerCase().includes(q))) continue;
        if (col.some(c => state.pick[c.name] && ![c.values[i]].flat().includes(state.pick[c.name]))) continue;
        rows.push(i);
      }
      if (state.sort >= 0) { const c = col[state.sort], v = c.values, s = state.down ? -1 : 1; rows.sort((a, b) => { const x = v[a], y = v[b]; if (x === null) return 1; if (y === null) return -1; return s * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y))) || a - b; }); }
      order = rows;
      const pages = Math.max(1, Math.ceil(rows.length / PAGE)); state.page = Math.min(state.page, pages - 1);
      shown.forEach((c, k) => { tr.children[k].setAttribute("aria-sort", col.indexOf(c) === state.sort ? (state.down ? "descending" : "ascending") : "none"); tr.children[k].firstChild.textContent = c.label + (col.indexOf(c) === state.sort ? (state.down ? " ↓" : " ↑") : ""); });
      body.textContent = "";
      for (const i of rows.slice(state.page * PAGE, state.page * PAGE + PAGE)) {
        const r = el("tr");
        for (const c of shown) r.append(el("td", cell(c, i), c.number ? "n" : "wrap"));
        if (spec.open) { r.tabIndex = 0; const go = () => { $$("tr[aria-selected]", body).forEach(x => x.removeAttribute("aria-selected")); r.setAttribute("aria-selected", "true"); openDocument(values(spec.open)[i]); }; r.addEventListener("click", go); r.addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); go(); } else if (e.key === "ArrowDown" && r.nextSibling) { e.preventDefault(); r.nextSibling.focus(); } else if (e.key === "ArrowUp" && r.previousSibling) { e.preventDefault(); r.previousSibling.focus(); } }); }
        body.append(r);
      }
      count.textContent = `${rows.length.toLocaleString("en")} of ${n.toLocaleString("en")} rows, page ${state.page + 1} of ${pages}`;
      back.disabled = state.page === 0; next.disabled = state.page >= pages - 1;
    }
    search.addEventListener("input", () => { state.text = search.value; state.page = 0; draw(); });
    back.addEventListener("click", () => { state.page--; draw(); }); next.addEventListener("click", () => { state.page++; draw(); });
    draw();
  }

  // ---- documents
  const docs = data("documents") || {};
  function openDocument(key) {
    const view = $("#document"); if (!view) return;
    const d = docs[String(key)];
    view.textContent = "";
    if (!d) { view.append(el("p", "No excerpt of this row is kept: only suspected documents have one. `forensics show CASE --doc " + key + "` prints it.", "none")); view.scrollIntoView({block: "nearest"}); return; }
    view.append(el("h3", d.title));
    const facts = el("dl", null, "facts"); for (const [k, v] of d.facts) { facts.append(el("dt", k), el("dd", num(v))); } view.append(facts);
    for (const part of d.parts) {
      if (part.label) view.append(el("p", part.label, "soft small"));
      const box = el("div", null, "doc"); box.tabIndex = 0; box.dir = "auto";
      for (const [text, kind, strength] of part.pieces) {
        if (!kind) { box.append(document.createTextNode(text)); continue; }
        const m = kind === "mark" ? el("mark", text) : el("span", text, kind);
        if (kind === "heat") { m.style.background = `color-mix(in srgb, ${strength > 0 ? "var(--c1)" : "var(--c0)"} ${Math.round(Math.min(1, Math.abs(strength)) * 60)}%, transparent)`; m.title = part.values ? part.values.shift() : ""; }
        box.append(m);
      }
      view.append(box);
    }
    view.scrollIntoView({block: "nearest"});
  }
  for (const b of $$("[data-open]")) b.addEventListener("click", () => openDocument(b.dataset.open));

  $$("[data-table]").forEach(table);
  setTheme(root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  root.dataset.ready = "yes";
})();
