// Which type of file a name stands for, and which names are of images that can be shown small.

const TYPES = {
  arrow: "Arrow", avi: "video", bin: "binary", bmp: "image", bz2: "bzip2", c: "C", cfg: "settings", conf: "settings",
  cpp: "C++", csv: "CSV", feather: "Arrow", flac: "audio", gif: "GIF image", gz: "gzip", h5: "HDF5", hdf5: "HDF5",
  htm: "HTML", html: "HTML", ini: "settings", ipynb: "notebook", jpeg: "JPEG image", jpg: "JPEG image", js: "JavaScript",
  json: "JSON", jsonl: "JSON lines", log: "log", markdown: "Markdown", md: "Markdown", mkv: "video", mov: "video",
  mp3: "audio", mp4: "video", ndjson: "JSON lines", npy: "NumPy", npz: "NumPy", ogg: "audio", onnx: "ONNX", parquet: "Parquet",
  pdf: "PDF", pickle: "pickle", pkl: "pickle", png: "PNG image", pt: "PyTorch", pth: "PyTorch", py: "Python",
  safetensors: "safetensors", sh: "shell script", sqlite: "SQLite", svg: "SVG image", tar: "tar archive", tgz: "tar archive",
  tif: "TIFF image", tiff: "TIFF image", toml: "TOML", tsv: "TSV", txt: "text", wav: "audio", webp: "WebP image",
  xml: "XML", xz: "xz", yaml: "YAML", yml: "YAML", zip: "zip archive", zst: "zstd",
};
const THUMBNAILS = new Set(["gif", "jpeg", "jpg", "png", "webp"]);
const THUMBNAIL_BYTES_MAX = 1024 * 1024; // the browser loads all of an image to show it small

function ending(name) {
  const cut = name.lastIndexOf(".");
  return cut > 0 ? name.slice(cut + 1).toLowerCase() : "";
}

export function typeOf(entry) {
  if (entry.kind !== "file") return entry.kind === "symlink" ? "symbolic link" : "directory";
  if (/\.tar\.[a-z0-9]+$/i.test(entry.name)) return "tar archive";
  const last = ending(entry.name);
  if (Object.hasOwn(TYPES, last)) return TYPES[last];
  if (entry.executable) return "program";
  return /^[a-z0-9]{1,8}$/.test(last) ? `.${last}` : "file";
}

export function hasThumbnail(entry) {
  return entry.kind === "file" && THUMBNAILS.has(ending(entry.name))
    && entry.size_bytes > 0 && entry.size_bytes <= THUMBNAIL_BYTES_MAX;
}
