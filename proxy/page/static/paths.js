// Paths as URLs have them, byte by byte, and as people read them.

// Names are bytes: what is not UTF-8 is shown as U+FFFD, as the API does.
export function decoded(part) {
  const octets = [];
  for (let at = 0; at < part.length; at += 1) {
    if (part[at] === "%") {
      octets.push(parseInt(part.slice(at + 1, at + 3), 16));
      at += 2;
    } else octets.push(...new TextEncoder().encode(part[at]));
  }
  return new TextDecoder().decode(new Uint8Array(octets));
}

// REPO@REV, and the path behind it.
export function split(target) {
  const cut = target.indexOf("/", target.indexOf("@"));
  return cut < 0 || !target.includes("@") ? { spec: target, path: "" } : { spec: target.slice(0, cut), path: target.slice(cut + 1) };
}

export function shortened(rev) {
  return /^[0-9a-f]{64}$/.test(rev) ? rev.slice(0, 12) : rev;
}

// The path of an entry behind REPO@REV/, as its link of the API has it.
export function behind(href) {
  return split(href.replace(/^\/[a-z]+\//, "")).path;
}
