"""What SFT trains on: assistant turns and the end of them, whatever the template, the form and the length."""

import pytest
import torch

from forge_host.errors import UsageError
from forge_host.loop.batch import make_batches
from forge_host.loop.examples import ExampleEncoder
from forge_host.types import Prompt

CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
#: Leaves the thinking out of every assistant turn but the last, as Qwen3's does.
FORGETFUL = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content if loop.last or m.role != 'assistant' else m.content.split('!')[-1] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MISMATCHED = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """Folder of a tokenizer with a token a character, and a special one a tag."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tags = ["<user>", "<assistant>", "<system>", "<end>"]
    characters = [c for c in map(chr, range(32, 127)) if c != "?"]
    vocab = {token: i for i, token in enumerate([*tags, "\n", "?", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(tags)

    def save(template: str | None) -> str:
        path = tmp_path_factory.mktemp("characters")
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
        wrapped.chat_template = template
        wrapped.save_pretrained(path)
        return str(path)

    return save


def chat(*contents: str, **last) -> Prompt:
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    turns[-1].update(last)
    return Prompt(id="c", messages=tuple(turns))


def encoder(path: str, **options) -> ExampleEncoder:
    return ExampleEncoder(path, **{"system": None, "chat": True, "seq_len": 200, **options})


def trained(encode: ExampleEncoder, row) -> list[str]:
    """The stretches of a row that count, as text."""
    out, before = [], False
    for token, counts in zip(row.completion.token_ids, row.mask, strict=True):
        if counts and not before:
            out.append("")
        if counts:
            out[-1] += encode.tokenizer.decode([token])
        before = counts
    return out


def whole(encode: ExampleEncoder, row) -> str:
    return encode.tokenizer.decode([*row.completion.prompt_ids, *row.completion.token_ids])


def test_only_assistant_turns_count(characters) -> None:
    encode = encoder(characters(CHATML), system="s")
    (row,) = encode(chat("ab", "cd", "ef", "gh"))
    assert trained(encode, row) == ["cd<end>", "gh<end>"]
    assert whole(encode, row) == "<system>s<end>\n<user>ab<end>\n<assistant>cd<end>\n<user>ef<end>\n<assistant>gh<end>"
    assert encode.tokenizer.decode(row.completion.prompt_ids).endswith("<user>ab<end>\n<assistant>")


def test_the_prompt_is_what_the_generator_would_get(characters) -> None:
    encode = encoder(characters(CHATML))
    (row,) = encode(Prompt(id="p", text="2+2", target="4"))
    assert list(row.completion.prompt_ids) == encode.prompts(Prompt(id="p", text="2+2"))
    assert trained(encode, row) == ["4<end>"]


def test_a_turn_of_weight_zero_is_context(characters) -> None:
    encode = encoder(characters(CHATML))
    turns = chat("ab", "cd", "ef", "gh").messages
    (row,) = encode(Prompt(id="w", messages=(turns[0], {**turns[1], "weight": 0}, *turns[2:])))
    assert trained(encode, row) == ["gh<end>"]
    with pytest.raises(UsageError, match="example w has no response to train on"):
        encode(Prompt(id="w", messages=(turns[0], {**turns[1], "weight": 0})))


def test_a_template_that_rewrites_history_gives_a_row_a_turn(characters) -> None:
    encode = encoder(characters(FORGETFUL))
    rows = encode(chat("ab", "think!cd", "ef", "more!gh"))
    assert [trained(encode, row) for row in rows] == [["think!cd<end>"], ["more!gh<end>"]]
    assert whole(encode, rows[1]) == "<user>ab<end>\n<assistant>cd<end>\n<user>ef<end>\n<assistant>more!gh<end>"


def test_a_template_without_generation_prompt_is_refused(characters) -> None:
    with pytest.raises(UsageError, match="does not write an assistant turn as its generation prompt begins it"):
        encoder(characters(MISMATCHED))(chat("ab", "cd"))


def test_what_a_template_cannot_write_is_said_by_name(characters) -> None:
    strict = encoder(characters("{{ raise_exception('Roles must alternate') }}"))
    with pytest.raises(UsageError, match=r"cannot write c with the roles user \(TemplateError: Roles must alternate\)"):
        strict(chat("2", "4"))
    with pytest.raises(UsageError, match="cannot write c with the roles user .* give each content as text"):
        strict.prompts(chat("2"))
    encode = encoder(characters(CHATML))
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    with pytest.raises(UsageError, match=r"does not write tool calls \(example c\)"):
        encode(chat("2", "", tool_calls=[call]))
    with pytest.raises(UsageError, match="prompt c ends with the assistant's turn, so nothing is left to be answered"):
        encode.prompts(chat("2", "4"))


def test_a_turn_that_opens_the_conversation_is_context(characters) -> None:
    opened = Prompt(id="o", messages=({"role": "assistant", "content": "Hello"}, *chat("2", "4").messages))
    encode = encoder(characters(CHATML))
    assert trained(encode, encode(opened)[0]) == ["4<end>"]
    with pytest.raises(UsageError, match="no assistant message that answers, no target, its `response` is 5, not text"):
        encode(Prompt(id="n", text="2", metadata={"response": 5}))


def test_a_chat_needs_a_template_and_plain_text_ends_with_the_end(characters) -> None:
    encode = encoder(characters(None))
    with pytest.raises(UsageError, match="has no chat template"):
        encode(chat("ab", "cd"))
    (row,) = encode(Prompt(id="p", text="ab", target="cd"))
    assert trained(encode, row) == ["cd<end>"] and encode.tokenizer.decode(row.completion.prompt_ids) == "ab"


def test_the_response_beside_a_target_is_what_is_learnt(characters) -> None:
    encode = encoder(characters(CHATML))
    (row,) = encode(Prompt(id="p", text="ab", target="4", metadata={"response": "so 4"}))
    assert trained(encode, row) == ["so 4<end>"]
    roles = (("assistant", "x"), ("user", "y"), ("assistant", "z"))
    turns = [{"role": role, "content": text} for role, text in roles]
    (row,) = encode(Prompt(id="p", text="ab", metadata={"completion": turns}))
    assert trained(encode, row) == ["x<end>", "z<end>"]


@pytest.mark.parametrize(("truncate", "kept"), [(False, None), (True, "abcdefgh"[:3])])
def test_longer_than_the_model_is_left_out_or_cut(characters, truncate: bool, kept: str | None) -> None:
    encode = encoder(characters(None), seq_len=5, truncate=truncate)
    rows = encode(Prompt(id="p", text="12", target="abcdefgh"))
    assert [trained(encode, row) for row in rows] == ([[kept]] if kept else [])
    assert (encode.too_long, encode.truncated) == ((0, 1) if truncate else (1, 0))
    assert encode(Prompt(id="q", text="123456", target="a")) == [], "nothing of the response is left"


def test_masks_with_gaps_reach_the_trainer(characters) -> None:
    encode = encoder(characters(CHATML))
    rows = encode(chat("ab", "cd", "ef", "gh")) + encode(chat("a", "b"))
    inputs, targets = make_batches(rows, 1)
    mask, lengths = targets[0]["padding_mask"], targets[0]["lengths"]
    assert mask.sum(1).tolist() == [6, 2] and lengths.tolist() == [13, 2]
    assert targets[0]["generator_logprobs"] is None and torch.equal(mask[0, :3], torch.ones(3, dtype=torch.bool))
    assert inputs[0]["tokens"].numel() == sum(row.num_tokens for row in rows)
