// Who is in this room: one EventSource, and a picture that is drawn from what it sends.

const find = (id) => document.getElementById(id);
const copy = (id) => find(id).content.firstElementChild.cloneNode(true);

// This tab, for as long as it shows this page.
const seat = crypto.getRandomValues(new Uint32Array(2)).join("-");

let welcome; // what the server said when the page was opened: the signed name of the stream, a guest's name and colour
let name; // under which this tab is here
let choice = null; // what it has chosen
let source; // the EventSource
let connection = null; // the id of its connection; null while there is none
let shown = { number: 0, servers: [], seats: [] }; // the picture on the page

// --- the stream ----------------------------------------------------------------------------------

function open() {
  source?.close();
  connection = null;
  const query = new URLSearchParams({ seat, name, colour: welcome.guest.colour });
  const opened = new EventSource(`/pgbus/streams/${welcome.stream}?${query}`);
  opened.addEventListener("pgbus:connected", (event) => connected(JSON.parse(event.data).connectionId));
  opened.addEventListener("room", (event) => draw(JSON.parse(event.data)));
  opened.addEventListener("error", () => disconnected(opened));
  source = opened;
}

// The seat is taken, and other tabs may have been told before this one could be.
async function connected(id) {
  connection = id;
  try {
    if (choice) await tell("/state", { connection, choice });
    draw(await (await fetch("/room")).json());
    trouble("");
  } catch {
    // The server is gone again, which the stream notices, too.
  }
}

// The browser tries again by itself, unless it was refused.
function disconnected(opened) {
  if (opened !== source) return;

  connection = null;
  trouble(`Server ${welcome.server} does not answer, so what you see here is old. This tab tries again every two ` +
    "seconds, and takes its seat back by itself.");
  if (opened.readyState === EventSource.CLOSED) setTimeout(() => opened === source && open(), 2000);
}

async function tell(path, what) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(what) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
}

async function choose(id) {
  choice = choice === id ? null : id;
  try {
    if (connection) await tell("/state", { connection, choice });
  } catch {
    news("That did not reach the room.");
  }
}

function order(what, server) {
  tell("/servers", { do: what, server }).catch(() => news("That did not reach the server."));
}

// --- the picture ---------------------------------------------------------------------------------

// Nothing that comes from somebody else is taken for HTML: all of it goes into textContent.
function draw(picture) {
  if (picture.number <= shown.number) return; // overtaken by a newer one

  tellNews(shown, picture);
  shown = picture;
  find("count").textContent = seats(picture.seats.length);
  document.title = `${picture.seats.length} in this room`;
  drawServers(picture);
  drawSeats(picture);
  drawChoices(picture);
}

function drawSeats({ seats: guests, servers }) {
  const list = find("seats");
  const rows = new Map(Array.from(list.children, (row) => [row.dataset.seat, row]));
  for (const guest of guests) {
    const row = rows.get(guest.seat) ?? list.appendChild(copy("seat-template"));
    rows.delete(guest.seat);
    row.dataset.seat = guest.seat;
    row.classList.remove("leaving");
    row.classList.toggle("mine", guest.seat === seat);
    row.querySelector(".disc").textContent = Array.from(guest.name)[0];
    row.querySelector(".name").textContent = guest.name;
    row.querySelector(".where").textContent = chosen(guest)?.name ?? "has not chosen yet";
    row.querySelector(".server").textContent = guest.server;
    row.querySelector(".server").title = `server ${guest.server}`;
    colour(row, guest);
    fade(row, guest, servers);
  }
  rows.forEach(leave);
}

// A seat whose server was killed: nobody touches it any more, and what is left of its time can be seen.
function fade(row, guest, servers) {
  const lost = killed(servers, guest.server);
  if (lost) row.querySelector(".where").textContent = "not heard of any more";
  if (lost && !row.classList.contains("lost")) {
    row.style.setProperty("--left", `${Math.max(0, welcome.ttl - guest.untouched)}s`);
  }
  row.classList.toggle("lost", lost);
}

// A seat that has another name a moment later has not left.
function leave(row) {
  row.classList.add("leaving");
  // Longer than the transition, of whose end a tab in the background would not hear.
  setTimeout(() => row.classList.contains("leaving") && row.remove(), 900);
}

function drawChoices({ seats: guests, servers }) {
  for (const card of find("choices").children) {
    const here = guests.filter((guest) => guest.choice === card.dataset.choice);
    const mine = here.find((guest) => guest.seat === seat);
    card.setAttribute("aria-pressed", Boolean(mine));
    colour(card, mine);
    card.querySelector(".chosen").replaceChildren(...here.map((guest) => {
      const chip = document.createElement("bdi");
      chip.textContent = guest.name;
      chip.classList.toggle("lost", killed(servers, guest.server));
      colour(chip, guest);
      return chip;
    }));
  }
}

function drawServers({ servers, seats: guests }) {
  const list = find("servers");
  for (const server of servers) {
    const row = list.querySelector(`[data-server="${server.name}"]`) ?? list.appendChild(copy("server-template"));
    const here = server.name === welcome.server;
    const dead = server.status === "killed";
    row.dataset.server = server.name;
    row.classList.toggle("dead", dead);
    row.querySelector(".server").textContent = server.name;
    row.querySelector(".status").textContent =
      dead ? "killed" : seats(guests.filter((guest) => guest.server === server.name).length);
    row.querySelector(".address").textContent = `${location.hostname}:${server.port}${here ? ", this tab's" : ""}`;
    const button = row.querySelector(".order");
    button.hidden = here; // a server cannot kill itself
    button.disabled = server.status === "starting";
    button.textContent = dead ? "Start it again" : "Kill it";
    button.onclick = () => order(dead ? "start" : "kill", server.name);
    if (!here) find("there").href = `http://${location.hostname}:${server.port}/`;
  }
}

// What has changed, in words; a tab's own coming and going is no news to it.
function tellNews(before, after) {
  if (before.number === 0) return;

  const seatsOf = (picture) => new Set([seat, ...picture.seats.map((guest) => guest.seat)]);
  const swept = (guest) => killed(after.servers, guest.server);
  const [old, now] = [seatsOf(before), seatsOf(after)];
  const come = after.seats.filter((guest) => !old.has(guest.seat));
  const gone = before.seats.filter((guest) => !now.has(guest.seat));
  const left = gone.filter((guest) => !swept(guest));
  const lost = after.servers.filter((server) => server.status === "killed" && !killed(before.servers, server.name));

  if (come.length > 0) news(`${names(come)} came.`);
  if (left.length > 0) news(`${names(left)} left.`);
  if (gone.length > left.length) news(`Swept away: ${names(gone.filter(swept))}.`);
  if (lost.length > 0) news(`Server ${lost[0].name} was killed.`);
}

// --- words and colours ---------------------------------------------------------------------------

const chosen = (guest) => welcome.choices.find((known) => known.id === guest.choice);
const killed = (servers, name) => servers.some((server) => server.name === name && server.status === "killed");
const names = (guests) => new Intl.ListFormat("en").format(guests.map((guest) => guest.name));
const seats = (number) => (number === 1 ? "1 seat taken" : `${number} seats taken`);

// Steps of 150 degrees: those who come one after the other are easy to tell apart.
function colour(element, guest) {
  if (guest) element.style.setProperty("--hue", (guest.colour * 150 + 30) % 360);
}

function news(text) {
  find("news").textContent = text;
}

function trouble(text) {
  find("trouble").textContent = text;
  find("trouble").hidden = !text;
  document.body.classList.toggle("offline", Boolean(text));
}

// --- the beginning -------------------------------------------------------------------------------

async function begin() {
  welcome = await (await fetch("/welcome")).json();
  name = welcome.guest.name;
  find("name").value = name;
  colour(document.body, welcome.guest);
  for (const known of welcome.choices) {
    const card = copy("choice-template");
    card.dataset.choice = known.id;
    card.querySelector(".name").textContent = known.name;
    card.querySelector(".remark").textContent = known.remark;
    card.addEventListener("click", () => choose(known.id));
    find("choices").append(card);
  }
  open();
}

// Another name is another connection, since it is the connection that is asked who it is.
function rename(event) {
  event.preventDefault();
  const wanted = find("name").value.trim();
  find("name").value = wanted || name;
  if (wanted && wanted !== name) {
    name = wanted;
    open();
  }
}

find("you").addEventListener("submit", rename);
find("you").addEventListener("change", rename);
// A page that the browser keeps for its back button is in the room only while it is shown.
addEventListener("pagehide", () => source?.close());
addEventListener("pageshow", (event) => event.persisted && open());

begin().catch(() => trouble("The server does not answer. Is the demo still running?"));
