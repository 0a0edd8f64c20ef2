"use strict";
// Charts from their specifications: shared cursor, shared axis of steps, tokens or time, marked stretches and steps.
(() => {
  const {$$, data, css, num, onTheme} = page;
  const DASHES = [[], [], [5, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 6], [1, 2]];
  const sync = uPlot.sync("x");
  let charts = [], axis = "step";

  // Position of a step on the axis shown: between the records around it.
  function place(spec, xs, step) {
    const x = spec.x.step;
    let a = 0, b = x.length - 1;
    if (b < 1 || step <= x[0]) return xs[0];
    if (step >= x[b]) return xs[b];
    while (b - a > 1) { const m = (a + b) >> 1; if (x[m] <= step) a = m; else b = m; }
    return xs[a] + (xs[b] - xs[a]) * (step - x[a]) / (x[b] - x[a]);
  }
  function hatch(ctx, a, z, top, height) {
    ctx.save();
    ctx.beginPath();
    ctx.rect(a, top, Math.max(3, z - a), height);
    ctx.clip();
    ctx.strokeStyle = css("--c4");
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (let x = a - height; x < z + 4; x += 7) { ctx.moveTo(x, top + height); ctx.lineTo(x + height, top); }
    ctx.stroke();
    ctx.restore();
  }
  const behind = spec => u => {
    const {top, height, left, width} = u.bbox, ctx = u.ctx, at = s => u.valToPos(place(spec, u.data[0], s), "x", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    for (const b of spec.bands || []) {
      const a = at(b.start), z = at(b.stop);
      if (b.hatch) { hatch(ctx, a, z, top, height); continue; }
      ctx.fillStyle = css(b.color);
      ctx.fillRect(a, top, Math.max(2, z - a), height);
    }
    ctx.restore();
  };
  const before = spec => u => {
    const {top, height, left, width} = u.bbox, ctx = u.ctx, r = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, 0, width, top + height);
    ctx.clip();
    ctx.font = `${11 * r}px sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    const until = [-1, -1];  // two rows of labels
    for (const m of spec.marks || []) {
      const x = u.valToPos(place(spec, u.data[0], m.step), "x", true);
      ctx.strokeStyle = ctx.fillStyle = css(m.color);
      ctx.lineWidth = (m.tick ? 1 : 1.5) * r;
      ctx.setLineDash((m.dash || []).map(d => d * r));
      ctx.beginPath();
      ctx.moveTo(x, m.tick ? top + height - 8 * r : top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      if (!m.label) continue;
      const wide = ctx.measureText(m.label).width, right = x + wide + 4 * r > left + width;
      const from = right ? x - wide - 4 * r : x + 4 * r;
      const row = until.findIndex(u => from > u);
      if (row >= 0) { ctx.fillText(m.label, from, top - (5 + 12 * row) * r); until[row] = from + wide + 4 * r; }
    }
    ctx.restore();
  };

  function options(spec, box) {
    const small = box.clientWidth < 520, line = css("--grid"), soft = css("--soft");
    const shown = v => v === null || v === undefined ? "" : spec.percent ? num(100 * v, 1) + " %" : num(v);
    const tick = n => n === null ? "" : spec.percent ? num(100 * n) + " %" : Math.abs(n) >= 1e9 ? num(n / 1e9) + " G" : Math.abs(n) >= 1e6 ? num(n / 1e6) + " M" : Math.abs(n) >= 1e4 ? num(n / 1e3) + " k" : num(n);
    const series = spec.series.map((s, i) => {
      const color = css(typeof s.color === "string" ? s.color : "--c" + (s.color ?? i));
      return {
        label: s.label, stroke: s.quiet ? "transparent" : color, width: s.width || 1.25, dash: s.dash || DASHES[i % DASHES.length], class: s.quiet ? "quiet" : null,
        spanGaps: !!s.span, points: {show: !!s.points, size: 5, fill: color}, value: (u, v) => shown(v),
      };
    });
    return {
      width: Math.max(180, Math.floor(box.clientWidth)), height: spec.height || 190,
      cursor: {sync: {key: sync.key, setSeries: false, scales: ["x", null]}, drag: {x: true, y: false}},
      padding: [(spec.marks || []).some(m => m.label) ? 30 : 8, 28, 0, 0],
      legend: {live: true, markers: {dash: (u, i) => i && series[i - 1].dash.length ? "dashed" : "solid"}},
      scales: {x: {time: axis === "time" && !!spec.x.time}, y: {distr: spec.log ? 3 : 1, ...(spec.top === undefined ? {} : {range: (u, lo, hi) => uPlot.rangeNum(lo, Math.min(hi, spec.top), 0.1, true)})}},
      axes: [
        {stroke: soft, grid: {stroke: line, width: 1}, ticks: {stroke: line, size: 4}, space: small ? 74 : 90, size: 30,
          values: axis === "time" && spec.x.time ? undefined : (u, v) => v.map(n => axis === "tokens" && n >= 1e6 ? num(n / 1e9) + " G" : num(n))},
        {stroke: soft, size: small ? 52 : 56, space: spec.log ? 24 : 26, grid: {stroke: line, width: 1}, ticks: {stroke: line, size: 4},
          filter: spec.log ? (u, v) => v.map(n => /^1/.test(String(n)) ? n : null) : undefined, values: (u, v) => v.map(tick)},
      ],
      series: [{label: axis === "time" ? "time (UTC)" : axis, value: (u, v) => v === null ? "" : axis === "time" && spec.x.time ? new Date(v * 1000).toISOString().slice(0, 19).replace("T", " ") : num(v)}, ...series],
      bands: (spec.between || []).map(([a, b]) => ({series: [a + 1, b + 1], fill: css("--trend")})),
      tzDate: t => uPlot.tzDate(new Date(t * 1e3), "Etc/UTC"),
      hooks: {drawClear: [behind(spec)], draw: [before(spec)]},
    };
  }
  function draw() {
    for (const c of charts) c.destroy();
    charts = [];
    for (const box of $$(".chart[data-chart]")) {
      const spec = data(box.dataset.chart);
      if (!spec || !box.clientWidth) continue;
      box.textContent = "";
      const plot = new uPlot(options(spec, box), [spec.x[axis] || spec.x.step, ...spec.series.map(s => s.values)], box);
      box.onkeydown = e => {
        const move = {ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9}[e.key];
        if (!move) return;
        e.preventDefault();
        const last = plot.data[0].length - 1, i = Math.max(0, Math.min(last, (plot.cursor.idx ?? last) + move));
        plot.setCursor({left: plot.valToPos(plot.data[0][i], "x"), top: 10});
      };
      plot.spec = spec;
      charts.push(plot);
    }
  }
  for (const b of $$("button[data-axis]")) b.addEventListener("click", () => {
    axis = b.dataset.axis;
    $$("button[data-axis]").forEach(o => o.setAttribute("aria-pressed", String(o.dataset.axis === axis)));
    draw();
  });
  // Zoom to steps on every chart, or back to all.
  for (const b of $$("button[data-zoom]")) b.addEventListener("click", () => {
    const [from, to] = b.dataset.zoom.split(":").map(Number);
    for (const c of charts) {
      const xs = c.data[0], at = s => place(c.spec, xs, s), all = b.dataset.zoom === "all" || from > c.spec.x.step[c.spec.x.step.length - 1];
      c.setScale("x", all ? {min: xs[0], max: xs[xs.length - 1]} : {min: at(from), max: Math.max(at(to), at(from) + 1e-9)});
    }
    if (b.dataset.zoom !== "all") document.getElementById("panels")?.scrollIntoView();
  });
  let timer = 0, width = innerWidth;
  addEventListener("resize", () => { if (innerWidth === width) return; width = innerWidth; clearTimeout(timer); timer = setTimeout(draw, 120); });
  for (const d of $$("details")) d.addEventListener("toggle", () => { if (d.open && d.querySelector(".chart")) draw(); });
  onTheme(draw);
  draw();
})();
