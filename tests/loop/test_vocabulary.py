"""A tokenizer that is not the model's is refused before anything starts."""

import json

import pytest
from fake_runs import write_letters_model

from forge_host.errors import UsageError
from forge_host.loop.vocabulary import check_vocabulary

END = {"id": 0, "content": "</s>"}


def folder(tmp_path, tokenizer: dict, **config) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [END], **tokenizer}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    return str(tmp_path)


WORDS = {"model": {"vocab": {"a": 1, "b": 2}}}
PIECES = {"model": {"type": "Unigram", "vocab": [["</s>", 0.0], ["a", -1.0], ["b", -2.0]]}}


@pytest.mark.parametrize("tokenizer", [WORDS, PIECES])
def test_a_token_without_an_embedding_is_named(tmp_path, tokenizer: dict) -> None:
    check_vocabulary(folder(tmp_path, tokenizer, vocab_size=3))
    check_vocabulary(folder(tmp_path, tokenizer, text_config={"vocab_size": 64}))  # padded
    with pytest.raises(UsageError, match=r"2 embeddings and 1 tokens lie beyond them, the last one 2 \('b'\)") as said:
        check_vocabulary(folder(tmp_path, tokenizer, vocab_size=2))
    assert str(tmp_path) in str(said.value) and "resize the model's embeddings" in str(said.value)


def test_what_ends_a_text_needs_an_embedding_other_added_tokens_do_not(tmp_path, capsys) -> None:
    image = {**WORDS, "added_tokens": [END, {"id": 3, "content": "<image>"}]}
    check_vocabulary(folder(tmp_path, image, vocab_size=3))
    assert "<image>" in capsys.readouterr().err
    with pytest.raises(UsageError, match="the last one 3 \\('</s>'\\)"):
        check_vocabulary(folder(tmp_path, {**WORDS, "added_tokens": [{**END, "id": 3}]}, vocab_size=3))
    with pytest.raises(UsageError, match="the last one 7 \\('eos_token_id of config.json'\\)"):
        check_vocabulary(folder(tmp_path, WORDS, vocab_size=3, eos_token_id=[0, 7]))


def test_nothing_to_compare_is_nothing_to_refuse(tmp_path) -> None:
    check_vocabulary(str(tmp_path))
    (tmp_path / "config.json").write_text('{"vocab_size": 1}')
    check_vocabulary(str(tmp_path))


def test_a_run_is_refused_before_any_process_starts(fake_run, tmp_path) -> None:
    (tmp_path / "model").mkdir()
    model = write_letters_model(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "table", "vocab_size": 12}))
    refused = fake_run(model=model)
    assert refused.code == 2 and "the model has 12 embeddings and 4 tokens lie beyond them" in refused.err
    assert refused.dir is None, "there is no run"
