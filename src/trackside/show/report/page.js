"use strict";
(() => {
  const root = document.documentElement;
  const MIN_PLOT_PX = 160; // minimum width of a plot; a narrower page scrolls
  const NARROW_PX = 700; // below this width of a chart there is no room for labels at the right
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const clock = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ") + " UTC";

  // -- copying

  async function copied(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { // a browser that has none for files, or asked and was refused
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
      button.textContent = (await copied(source.textContent)) ? "Copied" : "Not copied";
      button.focus();
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // -- links into what is folded up

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
  const themed = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; }; // what it switches to
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    themed();
    repaint();
  });
  dark.addEventListener("change", () => { themed(); repaint(); });
  themed();

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

  const views = []; // {view, box, axis, paddings: by whether the page is narrow, width: of the plot}
  const announced = document.getElementById("announced");
  let saying = 0;

  function repaint() {
    const colors = paint();
    for (const each of views) {
      for (const { name, value } of colors) each.view.signal(name, value);
      each.view.runAsync();
    }
  }

  function config() {
    const font = getComputedStyle(document.body).fontFamily;
    return { signals: paint(), axis: { labelFont: font, titleFont: font }, text: { font } };
  }

  function unpacked(text) {
    const packed = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")));
  }

  // The page's policy allows this script by the hash of its text.
  async function load() {
    const script = document.createElement("script");
    script.textContent = await unpacked(document.getElementById("vega").textContent).text();
    document.head.append(script);
  }

  // Vega would compile a function to read a table of numbers, which the page's policy forbids.
  function read(set) {
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

  function told(value) {
    if (value === null || typeof value !== "object") return String(value);
    return Object.entries(value).map(([name, each]) => `${name}: ${each}`).join("\n");
  }

  function tooltip(handler, event, item, value) {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    tip.textContent = told(value);
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  }

  // The page makes no requests: a chart cannot load anything.
  const refused = () => Promise.reject(new Error("charts cannot load data"));
  const loader = { load: refused, sanitize: refused, http: refused, file: refused };

  async function draw(box, described) {
    const { spec, rasters, axis, narrow } = described;
    spec.data.forEach(read);
    const grids = Object.entries(rasters);
    for (const [name, raster] of grids) spec.data.find((each) => each.name === name).values = [{
      width: raster.width, height: raster.height, values: new Uint8Array(await unpacked(raster.cells).arrayBuffer()),
    }];
    const each = { box, axis, paddings: { false: spec.padding, true: { ...spec.padding, ...narrow } } };
    Object.assign(each, sized(each, box.clientWidth));
    const signals = spec.signals.map((given) => (given.name === "narrow" ? { ...given, value: each.narrow } : given));
    const { view } = await vegaEmbed(box, { ...spec, signals, width: each.width, padding: each.paddings[each.narrow] }, {
      mode: "vega", renderer: grids.length ? "canvas" : "svg", config: config(), loader, tooltip,
      actions: false, defaultStyle: false, hover: true, ast: true, // ast: nothing is compiled, so the page needs no eval
    });
    each.view = view;
    for (const drawn of box.querySelectorAll("svg, canvas")) drawn.setAttribute("aria-hidden", "true"); // the caption and the table say it
    views.push(each);
    choose(each, described.slug);
    joined(each);
    new ResizeObserver(() => fitted(each)).observe(box);
  }

  function sized(each, width) {
    const narrow = width < NARROW_PX;
    const { left, right } = each.paddings[narrow];
    return { narrow, width: Math.max(MIN_PLOT_PX, Math.floor(width - left - right)) };
  }

  function fitted(each, width = each.box.clientWidth) {
    const wanted = sized(each, width);
    if (each.width === wanted.width && each.narrow === wanted.narrow) return;
    Object.assign(each, wanted);
    each.view.padding(each.paddings[each.narrow]).signal("narrow", each.narrow).width(each.width).runAsync();
  }

  function choose(each, slug) {
    const group = document.querySelector(`.choices[data-of="${slug}"]`);
    if (!group) return;
    group.disabled = false;
    for (const radio of group.querySelectorAll("input")) {
      radio.checked = radio.value === each.view.signal("choice");
      radio.addEventListener("change", () => each.view.signal("choice", radio.value).runAsync());
    }
  }

  // -- what charts over time share

  function joined(each) {
    for (const name of ["shown", "moment"]) each.view.addSignalListener(name, (_, value) => share(each, name, value));
    each.box.addEventListener("keydown", (event) => pressed(each, event));
    each.box.addEventListener("blur", () => move(each, null));
  }

  function same(a, b) {
    return a === b || (Array.isArray(a) && Array.isArray(b) && a[0] === b[0] && a[1] === b[1]);
  }

  function share(from, name, value) {
    for (const each of views) {
      if (each === from || each.axis !== from.axis || same(each.view.signal(name), value)) continue;
      each.view.signal(name, value).runAsync();
    }
  }

  const full = (each) => each.view.signal("full");

  // All charts over time show the same time range, so that they line up.
  function aligned() {
    const over = views.filter((each) => each.axis === "time");
    const all = [Math.min(...over.map((each) => full(each)[0])), Math.max(...over.map((each) => full(each)[1]))];
    for (const each of over) each.view.signal("full", all).signal("shown", all);
    return Promise.all(over.map((each) => each.view.runAsync()));
  }

  async function move(each, to) {
    await each.view.signal("moment", to).runAsync();
    share(each, "moment", to);
    if (to !== null) say(each, to);
  }

  function show(each, from, to) {
    const [first, last] = full(each);
    const span = Math.min(last - first, Math.max((last - first) / 2000, to - from));
    const start = Math.min(Math.max(first, from), last - span);
    each.view.signal("shown", [start, start + span]).runAsync();
    share(each, "shown", [start, start + span]);
  }

  function say(each, at) {
    clearTimeout(saying);
    saying = setTimeout(() => {
      const readings = readingsOf(each.view.scenegraph().root);
      announced.textContent = [each.axis === "time" ? clock(at) : `step ${Math.round(at)}`, ...new Set(readings)].join(", ");
    }, 120);
  }

  function readingsOf(item, found = []) {
    if (item.marktype === "text" && item.name?.startsWith("reading")) found.push(...item.items.map((each) => String(each.text || "")).filter(Boolean));
    for (const each of item.items || []) readingsOf(each, found);
    return found;
  }

  function pressed(each, event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const [from, to] = each.view.signal("shown"), span = to - from;
    const since = 1000 * Number(document.body.dataset.since);
    const start = each.axis === "time" && since >= from && since <= to ? since : from;
    const at = each.view.signal("moment") ?? start;
    const step = (event.shiftKey ? 0.1 : 0.01) * span;
    const stepped = (by) => {
      const next = each.view.signal("moment") === null ? at : Math.min(full(each)[1], Math.max(full(each)[0], at + by));
      if (next < from || next > to) show(each, next - span / 2, next + span / 2);
      move(each, next);
    };
    const act = {
      ArrowLeft: () => stepped(-step),
      ArrowRight: () => stepped(step),
      Home: () => move(each, from),
      End: () => move(each, to),
      "+": () => show(each, at - (at - from) / 2, at + (to - at) / 2),
      "=": () => show(each, at - (at - from) / 2, at + (to - at) / 2),
      "-": () => show(each, at - (at - from) * 2, at + (to - at) * 2),
      Escape: () => { show(each, ...full(each)); move(each, null); },
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  // -- paper

  let before;
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, folded: [...document.querySelectorAll("details.more:not([open])")] };
    root.dataset.theme = "light";
    for (const each of before.folded) each.open = true;
    repaint();
    for (const each of views) fitted(each, 680);
  });
  addEventListener("afterprint", () => {
    if (before.theme === undefined) delete root.dataset.theme;
    else root.dataset.theme = before.theme;
    for (const each of before.folded) each.open = false;
    repaint();
    for (const each of views) fitted(each);
  });

  // -- begin

  async function begin() {
    const data = document.getElementById("charts");
    if (data) {
      document.querySelector(".without").hidden = true;
      const loaded = load(), described = JSON.parse(data.textContent);
      for (const box of document.querySelectorAll(".chart")) {
        try {
          await loaded;
          await draw(box, described[Number(box.dataset.chart)]);
        } catch (error) {
          console.error(error);
          box.classList.add("empty");
          const note = document.createElement("p");
          note.className = "failed";
          note.textContent = `This chart cannot be drawn: ${error.message}. The table below contains the same data.`;
          box.replaceChildren(note);
        }
      }
      await aligned();
    }
    root.dataset.ready = "true";
  }
  begin();
})();
