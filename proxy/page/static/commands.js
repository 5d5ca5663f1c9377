// How to use a version: commands to be copied.
import { el } from "./dom.js";

// Of which names of repositories, branches and tags consist; all of them are plain for a shell.
const NAMES = /^[A-Za-z0-9_.][A-Za-z0-9_./-]*@[A-Za-z0-9_.-]+$/;

// Nothing for what is no name: it may come from a link that somebody made to be copied into a shell.
export function commands(repo, rev) {
  if (!NAMES.test(`${repo}@${rev}`)) return null;
  const spec = `${repo}@${rev}`;
  const name = repo.split("/").at(-1).replace(/[^A-Za-z0-9_.-]/g, "-");
  return el("details", { class: "card" }, el("summary", {}, "How to use it"),
    command("Shell", `mkdir -p ./${name} && lodefs mount ${spec} ./${name}\nlodefs pull ${spec} ./${name}-copy\nlodefs warm ${spec} --pin 7d`),
    command("Docker", `docker volume create --driver lodefs -o repo=${repo} -o commit=${rev} ${name}\ndocker run --rm -v ${name}:/data IMAGE ls /data`),
    command("Kubernetes", `volumes:\n  - name: data\n    csi:\n      driver: csi.lodefs.dev\n      volumeAttributes: { repo: "${repo}", commit: "${rev}" }`),
    command("Python", `import lodefs\n\ndata = lodefs.snapshot("${spec}")\nprint(data.commit, data.size_bytes)\nfor file in data.files(""):\n    print(file)`),
    command("HTTP", `curl ${location.origin}/list/${spec}/`));
}

function command(title, text) {
  const said = el("span", { role: "status" });
  const copy = el("button", { type: "button", "aria-label": `Copy the ${title} commands`, onclick: async () => {
    said.textContent = (await copied(text)) ? "copied " : "select and copy it ";
  } }, "Copy");
  return el("div", { class: "command" }, el("h3", {}, title, el("span", {}, said, copy)),
    el("pre", { tabindex: "0", role: "region", "aria-label": `${title} commands` }, el("code", {}, text)));
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text); // only where the page is secure
    return true;
  } catch {
    return false;
  }
}
