"""Token control in transformers: tags of real tokenizers, and generation with a tiny Qwen3."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
pytest.importorskip("transformers", reason="transformers: pip install 'turngym[torch]'")
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers import decoders as tokenizer_decoders
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from turngym.errors import InvalidRequest
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.logits_processor import ThinkingProcessor
from turngym.trainer_backends.algorithms.markers import Markers, spellings


def tokenizer(special: bool, merges: tuple[tuple[str, str], ...] = ()) -> PreTrainedTokenizerFast:
    """Bytes, some pairs of them merged, and the thinking tags as one token each where ``special``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    backend = Tokenizer(models.BPE(vocabulary, list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizer_decoders.ByteLevel()
    if special:
        backend.add_special_tokens([AddedToken("<think>"), AddedToken("</think>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


NEWLINE = "\u010a"
"""A line break as byte-level vocabularies write it."""


def test_tags_that_are_one_token() -> None:
    made = tokenizer(special=True)
    markers = Markers.of(made)
    opening, closing = (made.convert_tokens_to_ids(tag) for tag in ("<think>", "</think>"))
    assert markers.opening == ((opening,),) and markers.closing == ((closing,),)
    assert markers.queue[0] == closing and made.decode(markers.queue) == "</think>\n<action>"
    assert markers.opened_by(made.encode("x<think>\n")) and markers.opened_by(made.encode("x<think>"))
    assert not markers.opened_by(made.encode("reason inside <think> tags"))
    assert not markers.opened_by([])


def test_tags_that_merge_with_their_neighbours() -> None:
    # "k>" and ">\n" are tokens, and "\n<" too: the tag is spelt differently before a line break and after one.
    made = tokenizer(special=False, merges=((">", NEWLINE), ("k", ">"), (NEWLINE, "<")))
    found = spellings(made, "</think>")
    assert len(found) > 1
    markers = Markers.of(made, then="\n<answer>")
    for text in ("</think>", "a</think>\n", "\n</think>.", "so.</think>\n\n<action>", "so\n</think>\nx"):
        ids = tuple(made.encode(text))
        ends = [stop for stop in range(len(ids) + 1) for each in markers.closing if ids[:stop][-len(each) :] == each]
        # It is recognised exactly where its last character has come.
        complete = next(stop for stop in range(len(ids) + 1) if "</think>" in made.decode(ids[:stop]))
        assert ends and set(ends) == {complete}, text
    assert made.decode(markers.queue) == "</think>\n<answer>"
    assert markers.opened_by(made.encode("x<think>\n"))


def test_the_parts_know_what_their_source_forces() -> None:
    made = tokenizer(special=True)

    def forced(part: str, **settings: object) -> str:
        text: str = made.decode(parts.load("token_control", part, settings).config.markers(made).queue)
        return text

    assert forced("tti") == "</think>\n<action>" == forced("budget")
    assert forced("tti", variant="released") == "</think>"
    assert forced("tti", variant="released", then="\n<answer>") == "</think>\n<answer>"


def test_text_that_a_tokenizer_cannot_spell_is_refused() -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    with pytest.raises(InvalidRequest, match="spells"):
        Markers.of(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))


def qwen3() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=128, eos_token_id=None, pad_token_id=298,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


@pytest.mark.parametrize("sample", [False, True])
def test_generation_is_forced_row_by_row(sample: bool) -> None:
    made = tokenizer(special=True)
    part = parts.load("token_control", "budget", {"budget": 5})
    control = part(part.config.markers(made), parts.load("signals", "paper")())
    processor = ThinkingProcessor(control)
    prompts = torch.tensor([[1, 2, made.convert_tokens_to_ids("<think>")], [1, 2, 3]])
    model = qwen3()
    how = {"do_sample": True, "temperature": 0.7, "top_p": 0.9} if sample else {"do_sample": False}
    for _ in range(2):  # one processor serves one call after the other
        out = model.generate(
            prompts, logits_processor=[processor], max_new_tokens=20, attention_mask=prompts > 0,
            output_logits=True, return_dict_in_generate=True, **how,
        )  # fmt: skip
        traces = processor.finish()
        queue = list(part.config.markers(made).queue)
        replies = out.sequences[:, 3:].tolist()
        assert replies[0][5 : 5 + len(queue)] == queue
        forced = traces[0].forced_T.nonzero().flatten().tolist()
        assert forced == list(range(5, min(20, 5 + len(queue))))
        assert not traces[1].forced_T.any()
        # The logits that transformers hands out stay the model's own, and so do the entropies.
        logp = torch.stack(out.logits, 1).log_softmax(-1)
        assert torch.isfinite(logp).all()
        for row, trace in enumerate(traces):
            assert trace.entropies_T is not None
            torch.testing.assert_close(trace.entropies_T, -(logp[row].exp() * logp[row]).sum(-1), rtol=1e-4, atol=1e-5)


def test_rows_that_ended_early_are_cut() -> None:
    control = parts.load("token_control", "none")(None, parts.load("signals", "released")())
    processor = ThinkingProcessor(control)
    ids = torch.ones(2, 3, dtype=torch.long)
    for _ in range(4):
        processor(ids, torch.randn(2, 7))
        ids = torch.cat([ids, ids[:, :1]], -1)
    assert [len(trace.forced_T) for trace in processor.finish([2, 4])] == [2, 4]


def test_a_generation_that_was_not_finished_is_noticed() -> None:
    processor = ThinkingProcessor(parts.load("token_control", "none")())
    processor(torch.ones(2, 3, dtype=torch.long), torch.randn(2, 7))
    with pytest.raises(InvalidRequest, match="finish"):
        processor(torch.ones(2, 3, dtype=torch.long), torch.randn(2, 7))
