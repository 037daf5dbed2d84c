"""A policy small enough to train on two cores: a Qwen3 of 0.3 to 5 million parameters with an environment's own words.

It is an ordinary Hugging Face folder, made and loaded by the code that loads Qwen3-4B. The tokenizer is learnt from
what the environment writes and what its expert replies; each tag of the reply is one token, and so is every cell of a
grid.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...envs.core import check_seed, stable_rng
from ...envs.presets import EnvPreset
from ...envs.turn.grammar import GRAMMARS
from ...errors import InvalidRequest, RecordError, nearest

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Words with the blank before them, digits one by one, and any other sign by itself: a grid's cells stay apart.
WORDS = r" ?[A-Za-z]+| ?[0-9]|\n|[^A-Za-z0-9\s]| "


class Size(msgspec.Struct, frozen=True):
    """Shape of a model.

    Attributes:
        hidden: width.
        layers: blocks.
        heads: query heads.
        kv_heads: key and value heads.
        feed_forward: width inside a block.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int


SPREAD = 0.05
"""Deviation of fresh weights. With the usual 0.02, meant for wide models, these may need thousands of steps before they
attend to anything in the prompt."""
SIZES = {
    "tiny": Size(96, 3, 4, 2, 256),
    "small": Size(128, 4, 4, 2, 384),
    "medium": Size(192, 6, 6, 2, 512),
    "large": Size(256, 6, 8, 2, 768),
}


def texts(preset: EnvPreset, episodes: int, seed: int = 0) -> Iterator[str]:
    """Yield prompts and replies of training episodes in which the expert plays, with random actions between."""
    env = preset.make_turn()
    draw = random.Random(seed)
    try:
        for episode in range(episodes):
            split = env.tasks("train")
            task = split[int(stable_rng("tokenizer", seed, episode).integers(len(split)))]
            messages, info = env.reset(seed=episode, options={"task": task})
            while not env.done:
                yield from (str(message["content"]) for message in messages)
                reply = env.expert_action() if draw.random() < 0.7 else None
                if reply is None:
                    reply = env.style.wrap(draw.choice(info["admissible"] or [""]), "Let me try this.")
                yield reply
                messages, _, _, _, info = env.step(reply)
    finally:
        env.close()


def tags() -> list[str]:
    """Return every opening and closing tag of every grammar."""
    names = {tag for grammar in GRAMMARS.values() for tag in (*grammar.thoughts, *grammar.actions)}
    return [mark for name in sorted(names) for mark in (f"<{name}>", f"</{name}>")]


def least_vocabulary() -> int:
    """Return how many tokens every vocabulary has: the marks of the chat, all bytes and the tags."""
    return len((PAD, START, END)) + 256 + len(tags())


def empty_folder(out: Path) -> None:
    """Make a folder, or take one that is there and empty.

    Raises:
        InvalidRequest: it holds something, or cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        empty = not any(out.iterdir())
    except OSError as error:
        raise InvalidRequest(f"{out} cannot be made: {error.strerror}.", hint="Name a new folder.") from error
    if not empty:
        raise InvalidRequest(f"{out} is not empty.", hint="Name a new folder.")


def write(model: Any, tokenizer: Any, out: Path) -> None:
    """Write a plain Hugging Face folder.

    Raises:
        RecordError: the disk refused.
    """
    from safetensors import SafetensorError

    try:
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    except (OSError, SafetensorError) as error:
        raise RecordError(
            f"{out} could not be written: {error}.", hint="Free disk space, or name a folder elsewhere."
        ) from error


def learn_tokenizer(lines: Iterable[str], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer (``PreTrainedTokenizerFast``) with chat template and tags."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    whole = Tokenizer(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    whole.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(tags()),
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The roles of the chat template are words like any other.
    whole.train_from_iterator([*lines, *["system\nuser\nassistant\n"] * 100], trainer)
    whole.add_tokens(tags())  # ordinary tokens, so that decoding keeps them
    made: Any = PreTrainedTokenizerFast
    tokenizer = made(tokenizer_object=whole, pad_token=PAD, eos_token=END)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def new_policy(
    preset: EnvPreset,
    out: Path,
    *,
    size: str = "small",
    vocabulary: int = 1024,
    length: int = 2048,
    episodes: int = 200,
    seed: int = 0,
) -> dict[str, Any]:
    """Make a policy with random weights and save it as a Hugging Face folder.

    Args:
        preset: environment whose words it speaks.
        out: the folder; it must not exist or be empty.
        size: a key of ``SIZES``.
        vocabulary: tokens at most; a world with few words gets fewer. At least :func:`least_vocabulary`.
        length: positions of the model.
        episodes: training episodes from which the words are learnt.
        seed: of the weights.

    Returns:
        What was made: parameters, vocabulary, tokens of a prompt and of an expert's reply (means).

    Raises:
        InvalidRequest: no such size, a number that is too small, or the folder holds something or cannot be made.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    if size not in SIZES:
        raise InvalidRequest(f"No size {size!r:.60}.", hint=nearest(size, SIZES))
    least = {"vocabulary": least_vocabulary(), "length": 1, "episodes": 1}
    for name, value in (("vocabulary", vocabulary), ("length", length), ("episodes", episodes)):
        if value < least[name]:
            raise InvalidRequest(f"A policy with {name} {value} cannot be made.", hint=f"Give at least {least[name]}.")
    check_seed(seed)
    empty_folder(out)
    lines = list(texts(preset, episodes, seed))
    tokenizer = learn_tokenizer(lines, vocabulary)
    shape = SIZES[size]
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=length,
        initializer_range=SPREAD,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    write(model, tokenizer, out)
    lengths = [len(ids) for ids in tokenizer(lines)["input_ids"]]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocabulary": len(tokenizer),
        "text_tokens": round(sum(lengths) / max(1, len(lengths)), 1),
    }
