"""Reads a model and a dataset as one client of the hub does, in that client's environment.

``python readers.py CLIENT`` prints what it has read as one line of JSON, which is the same wherever
the bytes come from. ``python readers.py --model DIR`` and ``--table FILE`` make what is read.
"""

import hashlib
import json
import sys
from pathlib import Path

MODEL, DATASET, LARGE = "org/bert", "org/table", "org/large"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]


def huggingface_hub() -> object:
    """Snapshots of both, one file, the file system, and what is told of them."""
    import huggingface_hub as hf

    found = {}
    for kind, repo in (("model", MODEL), ("dataset", DATASET)):
        root = Path(hf.snapshot_download(repo, repo_type=kind))
        for path in sorted(root.rglob("*")):
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[f"{repo}/{path.relative_to(root)}"] = digest
    info = hf.HfApi().model_info(MODEL, files_metadata=True)
    one = hf.hf_hub_download(MODEL, "config.json", revision=info.sha)
    fs = hf.HfFileSystem()
    names = sorted(fs.find(f"datasets/{DATASET}"))
    sizes = [(file.rfilename, file.size) for file in info.siblings]
    return [found, info.sha, sizes, Path(one).read_text(), names]


def early(sha: str) -> object:
    """What can be known of a large file that is not there yet, and a small file beside it."""
    import huggingface_hub as hf

    told = hf.get_hf_file_metadata(hf.hf_hub_url(LARGE, "weights", revision=sha))
    config = hf.hf_hub_download(LARGE, "config.json", revision=sha)
    return [told.size, told.etag, told.commit_hash, Path(config).read_text()]


def late(sha: str) -> object:
    """The large file, whose name in the cache is its SHA-256."""
    import huggingface_hub as hf

    path = Path(hf.hf_hub_download(LARGE, "weights", revision=sha)).resolve()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == path.name
    return digest


def datasets() -> object:
    """The table, whole and streamed."""
    from datasets import load_dataset

    whole = load_dataset(DATASET, split="train")
    streamed = load_dataset(DATASET, split="train", streaming=True)
    return [len(whole), sum(whole["a"]), sum(row["a"] for row in streamed)]


def transformers() -> object:
    """Configuration and tokenizer, and the model if torch is installed."""
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import is_torch_available

    config = AutoConfig.from_pretrained(MODEL)
    tokens = AutoTokenizer.from_pretrained(MODEL)("hello world")["input_ids"]
    if not is_torch_available():
        return [config.hidden_size, tokens]
    from transformers import AutoModel

    model = AutoModel.from_pretrained(MODEL)
    return [config.hidden_size, tokens, sum(one.abs().sum().item() for one in model.parameters())]


def make_model(folder: Path) -> None:
    from transformers import BertConfig, BertModel, BertTokenizer

    config = BertConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=len(WORDS),
    )
    BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)


def make_table(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": range(100_000), "b": [str(n) for n in range(100_000)]}), path)


if __name__ == "__main__":
    if sys.argv[1] == "--model":
        make_model(Path(sys.argv[2]))
    elif sys.argv[1] == "--table":
        make_table(Path(sys.argv[2]))
    else:
        print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
