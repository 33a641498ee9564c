// What pages do beside showing: they follow what happens, count down, and copy commands. All of it can be done without.

const refreshRest = 1000; // between two looks
const lookAnyway = 5000; // without the stream

// busy tells whether the operator is at something in the region: it is left alone then.
function busy(region) {
  if (region.contains(document.activeElement) && document.activeElement !== document.body) return true;
  if (region.querySelector("dialog[open], details.act[open], input:checked")) return true;
  const chosen = document.getSelection();
  return Boolean(chosen && !chosen.isCollapsed && chosen.rangeCount && chosen.getRangeAt(0).intersectsNode(region));
}

// opened are details that were opened or shut: they stay so.
function keepOpen(from, to) {
  const now = from.querySelectorAll("details"), next = to.querySelectorAll("details");
  if (now.length === next.length) now.forEach((d, i) => { next[i].open = d.open; });
}

let looking = false, again = false;

async function refresh() {
  if (looking) { again = true; return; }
  looking = true;
  try {
    const got = await fetch(location.href, { headers: { "X-Relay-Part": "1", Accept: "text/html" }, redirect: "manual" });
    if (got.type === "opaqueredirect" || got.status === 401) { location.assign("/login"); return; }
    if (got.ok) {
      const page = new DOMParser().parseFromString(await got.text(), "text/html");
      for (const region of document.querySelectorAll("[data-live]")) {
        const next = page.getElementById(region.id);
        if (!next || region.innerHTML === next.innerHTML || busy(region)) continue;
        keepOpen(region, next);
        region.replaceChildren(...next.childNodes);
      }
      prepare();
    }
  } catch { /* relay is away; the next look tells */ }
  setTimeout(() => { looking = false; if (again) { again = false; refresh(); } }, refreshRest);
}

const live = document.getElementById("live");
let stream, timer, hiddenAt = 0;

function follow() {
  const topic = document.body.dataset.topic;
  if (!topic || !live || stream) return;
  live.hidden = false;
  stream = new EventSource("/events?topic=" + encodeURIComponent(topic));
  let first = true;
  stream.addEventListener("changed", () => {
    live.classList.remove("off"); live.textContent = "live";
    clearInterval(timer); timer = 0;
    if (!first) refresh();
    first = false;
  });
  stream.onerror = () => {
    live.classList.add("off"); live.textContent = "not live";
    timer ||= setInterval(refresh, lookAnyway);
  };
}

// A page that nobody sees asks for nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    hiddenAt = setTimeout(() => { stream?.close(); stream = null; clearInterval(timer); timer = 0; }, 30000);
    return;
  }
  clearTimeout(hiddenAt);
  if (!stream) { follow(); if (document.body.dataset.topic) refresh(); }
});
addEventListener("pagehide", () => { stream?.close(); stream = null; clearInterval(timer); timer = 0; });
addEventListener("pageshow", (e) => { if (e.persisted) follow(); });

function short(ms) {
  const s = Math.max(0, ms / 1000);
  if (s < 10) return s.toFixed(1) + "s";
  if (s < 3600) return Math.floor(s / 60) ? Math.floor(s / 60) + "m" + Math.floor(s % 60) + "s" : Math.floor(s) + "s";
  return Math.floor(s / 3600) + "h" + Math.floor((s % 3600) / 60) + "m";
}

// What is due by the clock of this machine: the times are those of the instances.
function countDown() {
  for (const t of document.querySelectorAll("time[data-in]")) {
    const left = Date.parse(t.dateTime) - Date.now();
    t.textContent = left > 0 ? "in " + short(left) : "now";
  }
}

function prepare() {
  for (const b of document.querySelectorAll("button[data-copy][hidden]")) b.hidden = false;
  countDown();
}

document.addEventListener("click", async (e) => {
  const b = e.target.closest?.("button[data-copy]");
  if (!b) return;
  const code = b.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
    b.textContent = "copied";
  } catch { // not permitted, or no secure context: select it
    document.getSelection().selectAllChildren(code);
    b.textContent = "selected";
  }
  setTimeout(() => { b.textContent = "copy"; }, 1500);
});

document.addEventListener("keydown", (e) => {
  if (e.key !== "/" || e.ctrlKey || e.metaKey || e.target.closest?.("input, textarea")) return;
  const search = document.getElementById("search");
  if (search) { e.preventDefault(); search.focus(); }
});

// The code behind # never reaches a log: browsers do not send it.
const login = document.getElementById("login");
if (login && location.hash.length > 1) {
  login.elements.code.value = location.hash.slice(1);
  history.replaceState(null, "", "/login");
  login.submit();
}

prepare();
setInterval(countDown, 1000);
follow();
