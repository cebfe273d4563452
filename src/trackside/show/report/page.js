"use strict";
(() => {
  const root = document.documentElement;
  const MIN_PLOT_PX = 160; // minimum width of a plot; a narrower page scrolls
  const NARROW_PX = 700; // below this width of a chart there is no room for labels at the right
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const clock = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ") + (document.body.dataset.zone ? ` ${document.body.dataset.zone}` : "");

  // -- copying

  async function copyText(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { // no clipboard for local files, or the user refused it
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = button.parentElement.querySelector(".copied");
      button.textContent = (await copyText(source.textContent)) ? "Copied" : "Not copied";
      button.focus();
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // -- links to targets inside folded sections

  function unfold() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const folded = target && target.closest("details:not([open])");
    if (folded) {
      folded.open = true;
      target.scrollIntoView();
    }
  }
  addEventListener("hashchange", unfold);
  unfold();

  // -- theme

  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const showOtherTheme = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; }; // the theme to switch to
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showOtherTheme();
    repaint();
  });
  dark.addEventListener("change", () => { showOtherTheme(); repaint(); });
  showOtherTheme();

  const names = document.body.dataset.paint.split(" ");
  function paint() {
    const probe = document.createElement("span");
    document.body.append(probe);
    const colors = names.map((name) => {
      probe.style.color = `var(--${name})`;
      return { name, value: getComputedStyle(probe).color };
    });
    probe.remove();
    return colors;
  }

  // -- charts

  const charts = []; // {view, box, axis, paddings: by whether the page is narrow, width: of the plot}
  const announced = document.getElementById("announced");
  let announceTimer = 0;

  function repaint() {
    const colors = paint();
    for (const chart of charts) {
      for (const { name, value } of colors) chart.view.signal(name, value);
      chart.view.runAsync();
    }
  }

  function config() {
    const font = getComputedStyle(document.body).fontFamily;
    return { signals: paint(), axis: { labelFont: font, titleFont: font }, text: { font } };
  }

  function unpack(text) {
    const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")));
  }

  // The page's policy allows this script by the hash of its text.
  async function load() {
    const script = document.createElement("script");
    script.textContent = await unpack(document.getElementById("vega").textContent).text();
    document.head.append(script);
  }

  // Vega would compile a function to read a table of numbers, which the page's policy forbids.
  function parseTable(set) {
    if (set.format?.type !== "csv" || typeof set.values !== "string") return;
    const [head, ...lines] = set.values.split("\n").map((line) => line.split(","));
    set.values = lines.map((line) => Object.fromEntries(head.map((name, i) => [name, line[i] === "" ? null : Number(line[i])])));
    delete set.format;
  }

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);

  function tipText(value) {
    if (value === null || typeof value !== "object") return String(value);
    return Object.entries(value).map(([name, field]) => `${name}: ${field}`).join("\n");
  }

  function tooltip(handler, event, item, value) {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    tip.textContent = tipText(value);
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  }

  // The page makes no requests: a chart cannot load anything.
  const refuse = () => Promise.reject(new Error("charts cannot load data"));
  const loader = { load: refuse, sanitize: refuse, http: refuse, file: refuse };

  async function draw(box, description) {
    const { spec, rasters, axis, unit, narrow } = description;
    spec.data.forEach(parseTable);
    const grids = Object.entries(rasters);
    for (const [name, raster] of grids) spec.data.find((set) => set.name === name).values = [{
      width: raster.width, height: raster.height, values: new Uint8Array(await unpack(raster.cells).arrayBuffer()),
    }];
    const chart = { box, axis, unit, paddings: { false: spec.padding, true: { ...spec.padding, ...narrow } } };
    Object.assign(chart, fitSize(chart, box.clientWidth));
    const signals = spec.signals.map((signal) => (signal.name === "narrow" ? { ...signal, value: chart.narrow } : signal));
    const { view } = await vegaEmbed(box, { ...spec, signals, width: chart.width, padding: chart.paddings[chart.narrow] }, {
      mode: "vega", renderer: grids.length ? "canvas" : "svg", config: config(), loader, tooltip,
      actions: false, defaultStyle: false, hover: true, ast: true, // ast: nothing is compiled, so the page needs no eval
    });
    chart.view = view;
    for (const image of box.querySelectorAll("svg, canvas")) image.setAttribute("aria-hidden", "true"); // the caption and the table contain it
    charts.push(chart);
    showChoices(chart, description.slug);
    linkCharts(chart);
    new ResizeObserver(() => resize(chart)).observe(box);
  }

  function fitSize(chart, width) {
    const narrow = width < NARROW_PX;
    const { left, right } = chart.paddings[narrow];
    return { narrow, width: Math.max(MIN_PLOT_PX, Math.floor(width - left - right)) };
  }

  function resize(chart, width = chart.box.clientWidth) {
    const size = fitSize(chart, width);
    if (chart.width === size.width && chart.narrow === size.narrow) return;
    Object.assign(chart, size);
    chart.view.padding(chart.paddings[chart.narrow]).signal("narrow", chart.narrow).width(chart.width).runAsync();
  }

  function showChoices(chart, slug) {
    const group = document.querySelector(`.choices[data-of="${slug}"]`);
    if (!group) return;
    group.disabled = false;
    for (const radio of group.querySelectorAll("input")) {
      radio.checked = radio.value === chart.view.signal("choice");
      radio.addEventListener("change", () => chart.view.signal("choice", radio.value).runAsync());
    }
  }

  // -- charts over time are linked

  function linkCharts(chart) {
    for (const name of ["shown", "moment"]) chart.view.addSignalListener(name, (_, value) => shareSignal(chart, name, value));
    chart.box.addEventListener("keydown", (event) => onKey(chart, event));
    chart.box.addEventListener("blur", () => moveCursor(chart, null));
  }

  function isEqual(a, b) {
    return a === b || (Array.isArray(a) && Array.isArray(b) && a[0] === b[0] && a[1] === b[1]);
  }

  function shareSignal(from, name, value) {
    for (const chart of charts) {
      if (chart === from || chart.axis !== from.axis || isEqual(chart.view.signal(name), value)) continue;
      chart.view.signal(name, value).runAsync();
    }
  }

  const full = (chart) => chart.view.signal("full");

  // All charts over time show the same time range, so that they line up.
  function alignRanges() {
    const overTime = charts.filter((chart) => chart.axis === "time");
    const range = [Math.min(...overTime.map((chart) => full(chart)[0])), Math.max(...overTime.map((chart) => full(chart)[1]))];
    for (const chart of overTime) chart.view.signal("full", range).signal("shown", range);
    return Promise.all(overTime.map((chart) => chart.view.runAsync()));
  }

  async function moveCursor(chart, to) {
    await chart.view.signal("moment", to).runAsync();
    shareSignal(chart, "moment", to);
    if (to !== null) announce(chart, to);
  }

  function zoom(chart, from, to) {
    const [first, last] = full(chart);
    const span = Math.min(last - first, Math.max((last - first) / 2000, to - from));
    const start = Math.min(Math.max(first, from), last - span);
    chart.view.signal("shown", [start, start + span]).runAsync();
    shareSignal(chart, "shown", [start, start + span]);
  }

  function announce(chart, position) {
    clearTimeout(announceTimer);
    announceTimer = setTimeout(() => {
      const readings = collectReadings(chart.view.scenegraph().root);
      announced.textContent = [chart.axis === "time" ? clock(position) : `${chart.unit} ${Math.round(position)}`, ...new Set(readings)].join(", ");
    }, 120);
  }

  function collectReadings(item, readings = []) {
    if (item.marktype === "text" && item.name?.startsWith("reading")) readings.push(...item.items.map((mark) => String(mark.text || "")).filter(Boolean));
    for (const child of item.items || []) collectReadings(child, readings);
    return readings;
  }

  function onKey(chart, event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const [from, to] = chart.view.signal("shown"), span = to - from;
    const since = 1000 * Number(document.body.dataset.since);
    const start = chart.axis === "time" && since >= from && since <= to ? since : from;
    const cursor = chart.view.signal("moment") ?? start;
    const step = (event.shiftKey ? 0.1 : 0.01) * span;
    const moveBy = (by) => {
      const next = chart.view.signal("moment") === null ? cursor : Math.min(full(chart)[1], Math.max(full(chart)[0], cursor + by));
      if (next < from || next > to) zoom(chart, next - span / 2, next + span / 2);
      moveCursor(chart, next);
    };
    const action = {
      ArrowLeft: () => moveBy(-step),
      ArrowRight: () => moveBy(step),
      Home: () => moveCursor(chart, from),
      End: () => moveCursor(chart, to),
      "+": () => zoom(chart, cursor - (cursor - from) / 2, cursor + (to - cursor) / 2),
      "=": () => zoom(chart, cursor - (cursor - from) / 2, cursor + (to - cursor) / 2),
      "-": () => zoom(chart, cursor - (cursor - from) * 2, cursor + (to - cursor) * 2),
      Escape: () => { zoom(chart, ...full(chart)); moveCursor(chart, null); },
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  // -- printing

  let before;
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, folded: [...document.querySelectorAll("details.more:not([open])")] };
    root.dataset.theme = "light";
    for (const details of before.folded) details.open = true;
    repaint();
    for (const chart of charts) resize(chart, 680);
  });
  addEventListener("afterprint", () => {
    if (before.theme === undefined) delete root.dataset.theme;
    else root.dataset.theme = before.theme;
    for (const details of before.folded) details.open = false;
    repaint();
    for (const chart of charts) resize(chart);
  });

  // -- start

  async function begin() {
    const data = document.getElementById("charts");
    if (data) {
      document.querySelector(".without").hidden = true;
      const loaded = load(), descriptions = JSON.parse(data.textContent);
      for (const box of document.querySelectorAll(".chart")) {
        try {
          await loaded;
          await draw(box, descriptions[Number(box.dataset.chart)]);
        } catch (error) {
          console.error(error);
          box.classList.add("empty");
          const note = document.createElement("p");
          note.className = "failed";
          note.textContent = `This chart cannot be drawn: ${error.message}. The table below contains the same data.`;
          box.replaceChildren(note);
        }
      }
      await alignRanges();
    }
    root.dataset.ready = "true";
  }
  begin();
})();
