// A slider through the iterations of recorded runs: slots by iterations, drawn up to the chosen one.
// TRACES: [{name, slots, steps: [{begun, ended, preempted, rows: [[request, slot, kind, start, tokens, blocks, padding]]}]}]
(() => {
  const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C6D31", "#7A5195"];
  const root = document.getElementById("slider");
  const policy = root.querySelector("select"), range = root.querySelector("input[type=range]");
  const canvas = root.querySelector("canvas"), now = root.querySelector(".now"), play = root.querySelector("button");
  TRACES.forEach((trace, i) => policy.add(new Option(trace.name, i)));
  const ids = [...new Set(TRACES.flatMap(t => t.steps.flatMap(s => s.rows.map(r => r[0]))))]
    .sort((a, b) => a.length - b.length || (a < b ? -1 : 1));
  const colour = new Map(ids.map((id, i) => [id, COLOURS[i % COLOURS.length]]));
  const longest = Math.max(...TRACES.map(t => t.steps.length));
  let timer = null;

  function hatch(context, x, y, width, height) {
    context.save();
    context.beginPath(); context.rect(x, y, width, height); context.clip();
    context.strokeStyle = "#999"; context.lineWidth = 1;
    for (let offset = -height; offset < width; offset += 6) {
      context.beginPath(); context.moveTo(x + offset, y + height); context.lineTo(x + offset + height, y); context.stroke();
    }
    context.restore();
  }

  function draw() {
    const trace = TRACES[policy.value], last = Number(range.value), scale = window.devicePixelRatio || 1;
    const left = 28, lane = 20, width = canvas.clientWidth, height = trace.slots * lane + 22;
    canvas.width = width * scale; canvas.height = height * scale; canvas.style.height = height + "px";
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = "11px system-ui, sans-serif"; context.textBaseline = "middle";
    const cell = (width - left - 4) / longest;
    for (let slot = 0; slot < trace.slots; slot++) {
      context.fillStyle = "#f4f4f4"; context.fillRect(left, slot * lane + 2, cell * trace.steps.length, lane - 4);
      context.fillStyle = "#666"; context.fillText(slot + 1, 6, slot * lane + lane / 2);
    }
    trace.steps.slice(0, last + 1).forEach((step, i) => step.rows.forEach(([id, slot, kind]) => {
      const x = left + i * cell, y = slot * lane + 2, w = Math.max(1, cell - 1), h = lane - 4;
      if (kind === "prefill" || kind === "decode") {
        context.globalAlpha = kind === "prefill" ? 1 : 0.38;
        context.fillStyle = colour.get(id); context.fillRect(x, y, w, h); context.globalAlpha = 1;
      } else hatch(context, x, y, w, h);
    }));
    context.fillStyle = "#111";
    trace.steps[last].rows.forEach(([id, slot]) => context.fillText(id, left + (last + 1) * cell + 3, slot * lane + lane / 2));
    context.fillText("iteration " + last, Math.min(left + last * cell, width - 90), trace.slots * lane + 12);
    tell(trace.steps[last], last);
  }

  function tell(step, last) {
    const count = (kind, of) => step.rows.filter(r => r[2] === kind).reduce((sum, r) => sum + r[of], 0);
    const idle = step.rows.reduce((sum, r) => sum + r[6], 0), blocks = step.rows.reduce((sum, r) => sum + r[5], 0);
    const prompts = step.rows.filter(r => r[2] === "prefill").map(r => `${r[0]} [${r[3]}, ${r[3] + r[4]})`).join(", ");
    const decodes = step.rows.filter(r => r[2] === "decode").map(r => r[0]).join(", ");
    now.textContent = `Iteration ${last}, ${((step.ended - step.begun) * 1e3).toFixed(2)} ms: `
      + `${count("prefill", 4)} prompt tokens${prompts && " (" + prompts + ")"}, `
      + `${count("decode", 4)} decodes${decodes && " (" + decodes + ")"}, ${idle} rows discarded, ${blocks} blocks of theirs`
      + (step.preempted.length ? `; preempted: ${step.preempted.join(", ")}` : "");
  }

  function choose() {
    range.max = TRACES[policy.value].steps.length - 1;
    range.value = range.max;
    draw();
  }
  play.onclick = () => {
    if (timer) { clearInterval(timer); timer = null; play.textContent = "play"; return; }
    if (range.value === range.max) range.value = 0;
    play.textContent = "stop";
    timer = setInterval(() => {
      if (Number(range.value) >= Number(range.max)) { play.onclick(); return; }
      range.value = Number(range.value) + 1; draw();
    }, 150);
  };
  policy.onchange = choose; range.oninput = draw; window.onresize = draw;
  choose();
})();
