// Changing figures, dialogs, the keyboard. Without it the page is complete, only older.
"use strict";
(() => {
  const root = document.documentElement;
  const body = document.body;
  root.classList.add("scripted");

  // ---- messages

  const said = document.getElementById("said");
  const step = document.getElementById("step");
  let saying = 0;
  function say(text, seconds = 8) {
    said.textContent = text;
    clearTimeout(saying);
    saying = setTimeout(() => { said.textContent = ""; }, 1000 * seconds);
  }

  // ---- figures that change

  let paused = false;
  let shown = null; // number of the shown page
  let newest = null;
  let loading = false;
  let again = false; // asked for meanwhile

  let done = null; // result of the savepoint or rescale that ended last

  function figures(changed) {
    if (changed.done !== undefined) {
      if (done !== null && changed.done && changed.done !== done) say(changed.done, 30);
      done = changed.done;
    }
    for (const element of document.querySelectorAll("[data-live]")) {
      const text = changed[element.dataset.live];
      if (text !== undefined && element.textContent !== text) element.textContent = text;
      if ("tone" in element.dataset && changed.tone) element.className = `badge ${changed.tone}`;
    }
  }

  function busy() {
    const selected = getSelection();
    return paused || document.querySelector("dialog[open]") !== null || (selected && !selected.isCollapsed);
  }

  function replace(section, fresh) {
    const open = new Map([...section.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
    const scrolled = [...section.querySelectorAll(".wide")].map((each) => each.scrollLeft);
    const focused = section.contains(document.activeElement) ? document.activeElement : null;
    const link = focused && focused.getAttribute("href"); // of a bar, too
    const summary = focused && focused.tagName === "SUMMARY" ? focused.parentElement.id : null;
    section.replaceChildren(...fresh.childNodes);
    for (const each of section.querySelectorAll("details[id]")) {
      if (open.has(each.id)) each.open = open.get(each.id);
    }
    section.querySelectorAll(".wide").forEach((each, index) => { each.scrollLeft = scrolled[index] || 0; });
    const again = summary
      ? section.querySelector(`#${CSS.escape(summary)} > summary`)
      : link && section.querySelector(`a[href="${CSS.escape(link)}"]`);
    if (again) again.focus({ preventScroll: true });
  }

  async function refresh(asked) {
    if (loading) again = again || asked;
    if (loading || ((newest === shown || busy()) && !asked)) return;
    loading = true;
    again = false;
    const wanted = newest;
    try {
      const answer = await fetch(location.pathname + location.search, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.redirected) {
        location.reload(); // the session is over: the login page
        return;
      }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.ok && (asked || !busy())) {
        for (const section of document.querySelectorAll("[data-swap]")) {
          const other = fresh.getElementById(section.id);
          if (other) replace(section, other);
        }
        const title = fresh.querySelector("title");
        if (title) document.title = title.textContent;
        shown = wanted;
        if (picked) followStrip();
        for (const each of document.querySelectorAll("details[data-part][open], #step[data-part]:not([hidden])")) loadPart(each);
      }
    } catch {
      // The daemon is away; the stream tells when it is back.
    } finally {
      loading = false;
      if (again) refresh(true);
    }
  }

  // ---- parts that are loaded when they are opened: each is a page of its own, too

  async function loadPart(details) {
    const place = details.tagName === "DETAILS" ? details.querySelector("div") : details;
    const address = details.dataset.part;
    try {
      const answer = await fetch(address, { headers: { Accept: "text/html" }, cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.redirected || address !== details.dataset.part || details.open === false) return;
      const open = [...place.querySelectorAll("details[open]")].map((each) => each.id);
      const scrolled = [...place.querySelectorAll(".wide")].map((each) => each.scrollLeft);
      place.replaceChildren(...[...fresh.querySelectorAll("main > section.card")].flatMap((each) => [...each.childNodes]));
      for (const each of place.querySelectorAll("details[id]")) each.open = each.open || open.includes(each.id);
      if (place === step) place.prepend(heading(fresh.querySelector("h1").textContent, address));
      place.querySelectorAll(".wide").forEach((each, index) => { each.scrollLeft = scrolled[index] || 0; });
    } catch {
      say("The coordinator does not answer.");
    }
  }

  function heading(text, address) {
    const made = document.createElement("h2");
    const link = document.createElement("a");
    link.href = address;
    link.textContent = text;
    made.append(link);
    return made;
  }

  document.addEventListener("toggle", (event) => {
    if (event.target.dataset.part && event.target.open) loadPart(event.target);
  }, true);

  // A page that stands still says so.
  const away = document.getElementById("away");
  let sinceThen = "";

  function lost(closed) {
    if (!sinceThen) sinceThen = new Date().toLocaleTimeString();
    away.textContent = closed
      ? `This page has stood still since ${sinceThen}: its coordinator does not lead the job any more, or your session is over. Load it again.`
      : `The coordinator has not answered since ${sinceThen}: what is shown is of then. The page goes on by itself when it answers.`;
    root.classList.add("stale");
    away.hidden = false;
  }

  function found() {
    sinceThen = "";
    root.classList.remove("stale");
    away.hidden = true;
  }

  function follow(address) {
    const stream = new EventSource(address);
    let followed = false; // else nothing changes here
    stream.addEventListener("open", found);
    stream.addEventListener("error", () => { if (followed) lost(stream.readyState === EventSource.CLOSED); });
    stream.addEventListener("tick", (event) => {
      followed = true;
      const told = JSON.parse(event.data);
      if (told.page !== undefined) {
        newest = told.page;
        if (shown === null) shown = newest;
      }
      if (!paused) figures(told.figures || {});
      refresh();
    });
    addEventListener("pagehide", () => stream.close());
  }
  if (body.dataset.events) follow(body.dataset.events);

  const pause = document.getElementById("pause");
  function toggle() {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Follow" : "Pause";
    if (!paused) refresh();
  }
  if (pause) pause.addEventListener("click", toggle);

  // ---- dialogs

  function bodyOf(button) {
    if (!button.dataset.body) return undefined;
    const body = JSON.parse(button.dataset.body);
    for (const input of button.form.querySelectorAll("input[name]")) {
      body[input.name] = input.type === "number" ? Number(input.value) : input.value.trim();
    }
    if ("withId" in button.dataset) body.id = uuid();
    return JSON.stringify(body);
  }

  // `randomUUID` is there on https and localhost only.
  function uuid() {
    return crypto.randomUUID ? crypto.randomUUID()
      : [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  async function post(button) {
    const body = bodyOf(button);
    const headers = { "X-Barrier-Runtime": "1", "X-Request-Id": uuid() };
    if (body) headers["Content-Type"] = "application/json";
    try {
      const answer = await fetch(button.dataset.post, { method: "POST", headers, body });
      const reply = await answer.json();
      say(answer.ok ? `${button.textContent}: accepted` : reply.reason || reply.error || `refused (${answer.status})`);
    } catch {
      say("The coordinator does not answer: nothing is known of this request. Look at the job before you repeat it.");
    }
  }

  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (opener) {
      const dialog = document.getElementById(opener.dataset.dialog);
      dialog.showModal();
      const input = dialog.querySelector("input");
      if (input) input.select();
    }
    const cancel = event.target.closest("[data-cancel]");
    if (cancel) cancel.closest("dialog").close();
    const sender = event.target.closest("[data-post]");
    if (sender && sender.form.checkValidity()) post(sender); // an invalid form stays open; the browser says why
  });

  document.addEventListener("input", (event) => {
    const line = event.target.form && event.target.form.querySelector("[data-line]");
    if (!line) return;
    const typed = event.target.value.trim();
    const quoted = /^[\w./:@%+=,-]+$/.test(typed) ? typed : `'${typed.replaceAll("'", "'\\''")}'`;
    line.textContent = line.dataset.line.replace(event.target.dataset.inLine, () => (typed ? quoted : event.target.dataset.inLine));
  });

  // ---- the filter of the list of jobs

  const filter = document.querySelector("[data-filter]");
  if (filter) {
    const input = filter.elements.q;
    const apply = () => {
      const query = new URLSearchParams(location.search);
      if (input.value.trim()) query.set("q", input.value.trim());
      else query.delete("q");
      history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
      refresh(true);
    };
    let typing = 0;
    filter.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
    input.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(apply, 150); });
  }

  // ---- the strip: the chosen or the newest checkpoint

  const picked = document.getElementById("picked");
  let pinned = null; // number of the checkpoint that is shown
  let following = false;
  let wishes = 0; // choices of the reader: a later choice makes an answer void

  function bars() {
    return [...document.querySelectorAll("svg.strip a.bar")];
  }

  function numberOf(bar) {
    return bar.getAttribute("href").split("/").pop();
  }

  function mark() {
    for (const bar of bars()) bar.classList.toggle("picked", numberOf(bar) === pinned);
  }

  async function pick(number) {
    const wish = wishes;
    if (number === pinned) return mark();
    try {
      const answer = await fetch(`${location.pathname}/checkpoints/${number}`, { headers: { Accept: "text/html" } });
      const text = await answer.text();
      if (wish !== wishes) return;
      if (!answer.ok || answer.redirected) return say(`Checkpoint ${number} is not known any more.`);
      const fresh = new DOMParser().parseFromString(text, "text/html");
      const head = picked.querySelector("p.actions") || actions(); // stays: a click may be under way
      const link = head.querySelector("a");
      link.href = `${location.pathname}/checkpoints/${number}`;
      link.textContent = `Checkpoint ${number}`;
      head.querySelector("[data-pick=follow]").setAttribute("aria-pressed", String(following));
      while (head.nextSibling) head.nextSibling.remove();
      picked.append(...fresh.querySelector("main > section.card").childNodes);
      picked.hidden = false;
      pinned = number;
      mark();
    } catch {
      say("The coordinator does not answer.");
    }
  }

  function actions() {
    const head = document.createElement("p");
    head.className = "actions";
    head.append(document.createElement("a"), button("Follow the newest", "follow"), button("Close", "close"));
    picked.replaceChildren(head);
    return head;
  }

  function button(text, action) {
    const made = document.createElement("button");
    made.textContent = text;
    made.dataset.pick = action;
    return made;
  }

  function followStrip() {
    const all = bars();
    if (following && all.length) pick(numberOf(all[all.length - 1]));
    else mark();
  }

  // ---- the graph: the subtasks of a step

  document.addEventListener("click", (event) => {
    const box = step && event.target.closest("svg.graph a");
    if (!box || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    const address = box.getAttribute("href");
    step.hidden = step.dataset.part === address && !step.hidden;
    step.dataset.part = address;
    if (!step.hidden) loadPart(step);
  });

  if (picked) {
    document.addEventListener("click", (event) => {
      const bar = event.target.closest("a.bar");
      if (bar && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
        event.preventDefault();
        following = false;
        wishes += 1;
        pick(numberOf(bar));
        return;
      }
      const action = event.target.closest("[data-pick]");
      if (!action) return;
      wishes += 1;
      if (action.dataset.pick === "close") {
        picked.hidden = true;
        pinned = null;
        following = false;
        mark();
      } else {
        following = !following;
        action.setAttribute("aria-pressed", String(following));
        followStrip();
      }
    });
  }

  // ---- keyboard: p pauses, arrows go from checkpoint to checkpoint

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea")) return;
    if (event.key === "p" && pause) toggle();
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const back = event.key === "ArrowLeft";
    const bar = event.target.closest("a.bar");
    if (bar) {
      const next = back ? bar.previousElementSibling : bar.nextElementSibling;
      let other = next;
      while (other && !other.matches("a.bar")) other = back ? other.previousElementSibling : other.nextElementSibling;
      if (other) other.focus();
      event.preventDefault();
      return;
    }
    const beside = document.querySelector(back ? "a[rel=prev]" : "a[rel=next]");
    if (beside && !document.querySelector("dialog[open]")) beside.click();
  });

  // ---- times on the reader's clock, on hover

  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.title = at.toLocaleString();
  }
})();
