// The page: which view is shown, the login, the theme, and the link to the node.
import { Follower, get, post } from "./api.js";
import { BrowseView } from "./browse_view.js";
import { CompareView } from "./compare_view.js";
import { el, replace } from "./dom.js";
import { NodeView } from "./node_view.js";
import { RepositoriesView } from "./repositories_view.js";
import { RepositoryView } from "./repository_view.js";

const place = document.getElementById("view");
const login = document.getElementById("login");
const logout = document.getElementById("logout");
const linkState = document.getElementById("link-state");
const node = new NodeView();
const views = {
  node: { element: node.element, title: "Node", show: () => node.drawChart() },
  repositories: Object.assign(new RepositoriesView(), { title: "Repositories" }),
  repository: Object.assign(new RepositoryView(), { title: "Repository" }),
  browse: Object.assign(new BrowseView(), { title: "Files" }),
  compare: Object.assign(new CompareView(), { title: "Two versions" }),
};
let going = new AbortController();

function route() {
  const hash = location.hash.replace(/^#\/?/, "");
  const cut = hash.indexOf("/");
  const name = cut < 0 ? hash : hash.slice(0, cut);
  const known = Object.hasOwn(views, name) ? name : "repositories";
  return { name: known, target: cut < 0 ? "" : hash.slice(cut + 1) };
}

function show({ focus }) {
  going.abort();
  going = new AbortController();
  const { name, target } = route();
  const view = views[name];
  document.title = `${target ? `${target.split("/").slice(0, 2).join("/")} – ` : ""}${view.title} – lodefs`;
  for (const link of document.querySelectorAll("nav a[data-view]")) {
    const here = link.dataset.view === (name === "node" ? "node" : "repositories");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  replace(place, view.element);
  view.show(target, going.signal);
  if (focus) {
    document.getElementById("main").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

const follower = new Follower({
  history: (samples) => node.history(samples),
  sample: (sample) => node.sample(sample),
  node: (state) => {
    node.node(state);
    document.getElementById("about").textContent = [`lodefs ${state.figures.version}`, state.figures.store].filter(Boolean).join(", ");
  },
}, (state) => {
  linkState.dataset.state = state;
  linkState.textContent = state === "live" ? "live" : "the node does not answer; trying again";
});

document.addEventListener("lodefs-login", () => {
  follower.stop();
  login.hidden = false;
  place.hidden = true;
  logout.hidden = true;
  linkState.textContent = "";
  delete linkState.dataset.state;
  document.getElementById("token").focus();
});

login.addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = document.getElementById("token");
  const said = document.getElementById("login-problem");
  said.textContent = "";
  try {
    await post("/page/login", field.value);
    location.reload();
  } catch (error) {
    said.textContent = error.status === 401 ? "This token is not known here." : error.message;
  }
  field.value = "";
});

logout.addEventListener("click", async () => {
  await post("/page/logout", null).catch(() => {});
  location.reload();
});

const THEMES = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");

function chosenTheme() {
  return document.documentElement.dataset.theme ?? "system";
}

function nameTheme() {
  replace(themeButton, el("span", { class: "theme-word" }, "Theme: "), chosenTheme());
  themeButton.setAttribute("aria-label", `Theme: ${chosenTheme()}`);
}

themeButton.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("lodefs-theme", next);
  } catch {
    // It holds until the page is left.
  }
  nameTheme();
});

async function begin() {
  nameTheme();
  addEventListener("hashchange", () => show({ focus: true }));
  show({ focus: false });
  try {
    const session = await get("/page/session");
    logout.hidden = !session.by_cookie;
    follower.start();
  } catch (error) {
    if (error.status !== 401) follower.lost();
  }
}

begin();
