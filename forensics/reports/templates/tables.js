"use strict";
// Tables that sort, filter and page; a table that opens documents moves by arrow keys.
(() => {
  const {$$, data, el, num} = page;

  // Digits that suit the whole column, so that numbers line up.
  function format(c) {
    if (c.format === "percent") return v => v === null ? "" : num(100 * v, 1) + " %";
    if (c.format === "key" || !c.number) return v => v === null || v === undefined ? "" : Array.isArray(v) ? v.join(", ") : String(v);
    if (c.format === "free") return v => num(v);
    const known = c.values.filter(v => typeof v === "number");
    if (known.every(Number.isInteger)) return v => num(v);
    const most = Math.max(...known.slice(0, 20000).map(Math.abs));
    if (c.format === "p" || most < 1e-3) return v => v === null ? "" : c.format === "p" ? (v < 1e-4 ? "<0.0001" : num(v, 4)) : v === 0 ? "0" : num(v);
    const digits = most >= 1000 ? 0 : most >= 100 ? 1 : most >= 1 ? 2 : 3;
    return v => v === null ? "" : num(v, digits);
  }

  function table(box) {
    const spec = data(box.dataset.table);
    if (!spec) return;
    const n = spec.rows, columns = spec.columns, shown = columns.filter(c => !c.hidden), formats = columns.map(format);
    const state = {sort: spec.sort ?? -1, down: spec.down ?? true, page: 0, size: spec.page || 25, text: "", pick: {}};
    const cell = (c, i) => formats[columns.indexOf(c)](c.values[i]);
    let text = null;  // what a filter looks at, made when first asked
    const lines = () => text ??= Array.from({length: n}, (_, i) => columns.map(c => cell(c, i)).join("\u0000").toLowerCase());

    const tools = el("div", null, "tools"), search = el("input");
    search.type = "search";
    search.placeholder = "filter rows";
    search.setAttribute("aria-label", "filter rows: " + spec.label);
    if (n > 8) tools.append(search);
    for (const c of columns.filter(c => c.choose)) {
      const names = [...new Set(c.values.flat())].filter(v => v !== null && v !== "").sort();
      if (names.length < 2) continue;
      const s = el("select");
      s.setAttribute("aria-label", c.label);
      s.append(new Option(`${c.label}: all`, ""));
      names.slice(0, 500).forEach(v => s.append(new Option(v, v)));
      s.addEventListener("change", () => { state.pick[c.name] = s.value; state.page = 0; draw(); });
      tools.append(s);
    }
    const count = el("span", "", "soft small"), back = el("button", "‹ previous"), next = el("button", "next ›"), size = el("select");
    count.setAttribute("aria-live", "polite");
    size.setAttribute("aria-label", "rows on a page");
    [state.size, 50, 200, 1000].filter((v, i, all) => all.indexOf(v) === i).forEach(v => size.append(new Option(`${v} rows`, v)));
    size.addEventListener("change", () => { state.size = Number(size.value); state.page = 0; draw(); });
    if (n > state.size) tools.append(back, next, size);
    tools.append(count);

    const scroll = el("div", null, "scroll"), t = el("table"), head = el("thead"), body = el("tbody"), tr = el("tr");
    t.setAttribute("aria-label", spec.label);
    for (const c of shown) {
      const th = el("th", null, c.number ? "n" : ""), b = el("button", c.label);
      th.scope = "col";
      b.type = "button";
      if (c.title) b.title = c.title;
      b.addEventListener("click", () => {
        const i = columns.indexOf(c);
        if (state.sort === i) state.down = !state.down; else { state.sort = i; state.down = !!c.number; }
        state.page = 0;
        draw();
      });
      th.append(b);
      tr.append(th);
    }
    head.append(tr);
    t.append(head, body);
    scroll.append(t);
    box.append(tools, scroll);

    function rows() {
      const words = state.text.toLowerCase(), found = [];
      for (let i = 0; i < n; i++) {
        if (words && !lines()[i].includes(words)) continue;
        if (columns.some(c => state.pick[c.name] && ![c.values[i]].flat().includes(state.pick[c.name]))) continue;
        found.push(i);
      }
      if (state.sort < 0) return found;
      const v = columns[state.sort].values, sign = state.down ? -1 : 1;
      return found.sort((a, b) => {
        const x = v[a], y = v[b];
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y))) || a - b;
      });
    }
    function open(r, i, jump) {
      $$("tr[aria-selected]", body).forEach(x => x.removeAttribute("aria-selected"));
      r.setAttribute("aria-selected", "true");
      page.openDocument(columns.find(c => c.name === spec.open).values[i], jump, spec.into);
    }
    function opens(r, i) {
      r.tabIndex = 0;
      r.addEventListener("click", () => open(r, i, true));
      r.addEventListener("keydown", e => {
        const other = {ArrowDown: r.nextSibling, ArrowUp: r.previousSibling}[e.key];
        if (e.key === "Enter" || e.key === " ") { e.preventDefault(); open(r, i, true); }
        if (other) { e.preventDefault(); other.focus(); }
      });
    }
    function draw() {
      const order = rows(), pages = Math.max(1, Math.ceil(order.length / state.size));
      state.page = Math.min(state.page, pages - 1);
      shown.forEach((c, k) => {
        const on = columns.indexOf(c) === state.sort;
        tr.children[k].setAttribute("aria-sort", on ? (state.down ? "descending" : "ascending") : "none");
        tr.children[k].firstChild.textContent = c.label + (on ? (state.down ? " ↓" : " ↑") : "");
      });
      body.textContent = "";
      for (const i of order.slice(state.page * state.size, (state.page + 1) * state.size)) {
        const r = el("tr");
        for (const c of shown) {
          const said = cell(c, i);
          r.append(el("td", said, c.number ? "n" : said.length > 30 ? "wrap" : ""));
        }
        if (spec.open) opens(r, i);
        body.append(r);
      }
      const from = order.length ? state.page * state.size + 1 : 0, to = Math.min(order.length, (state.page + 1) * state.size);
      count.textContent = `${from}–${to} of ${num(order.length)}` + (order.length < n ? ` (${num(n)} in all)` : "");
      back.disabled = state.page === 0;
      next.disabled = state.page >= pages - 1;
    }
    search.addEventListener("input", () => { state.text = search.value; state.page = 0; draw(); });
    back.addEventListener("click", () => { state.page--; draw(); });
    next.addEventListener("click", () => { state.page++; draw(); });
    draw();
    if (spec.open && body.firstChild) open(body.firstChild, rows()[0], false);
  }
  addEventListener("documents-ready", () => $$("[data-table]").forEach(table));
})();
