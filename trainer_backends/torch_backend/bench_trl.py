"""The same training step with TRL's GRPOTrainer: stock ``generate`` for a turn of all episodes, one row an episode.

Single turns are TRL's own loop with a reward function. Conversations go through its ``rollout_func``: a turn of all
unfinished episodes is generated together, left-padded, and the next begins when the last of them is done.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from typing import Any

import torch

from ...records import Message
from ..recipes import Recipe
from .measures import peak_memory_mb


def train(recipe: Recipe, model: str, steps: int) -> dict[str, Any]:
    """Train one step more than asked for; return the median seconds of the others, and sampled tokens a step."""
    import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, import-untyped, unused-ignore]

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    play = _Play(recipe, tokenizer)
    episodes = recipe.sampling.tasks * recipe.rollout["samples"]
    ends: list[float] = []

    class Watch(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())

    single = play.turns == 1
    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            processing_class=tokenizer,
            reward_funcs=[play.judge if single else play.recall],
            rollout_func=None if single else play.rollout,
            train_dataset=datasets.Dataset.from_list(play.prompts(recipe.sampling.tasks * (steps + 1))),
            callbacks=[Watch()],
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=episodes,
                num_generations=recipe.rollout["samples"],
                max_completion_length=recipe.sampling.max_tokens if single else recipe.sampling.max_prompt_tokens,
                learning_rate=recipe.update.learning_rate,
                beta=0.0,
                temperature=1.0,
                max_steps=steps + 1,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
        )
        trainer.train()
    seconds = [ended - began for began, ended in itertools.pairwise(ends)]
    sampled = play.sampled / (steps + 1)
    return {"s_a_step": statistics.median(seconds), "sampled": sampled, "peak_mib": peak_memory_mb()}


class _Play:
    """Episodes of the recipe's environment, as TRL asks for them."""

    def __init__(self, recipe: Recipe, tokenizer: Any) -> None:
        self.recipe = recipe
        self.tokenizer = tokenizer
        self.preset = recipe.env.load()
        self.turns = int(self.preset.turn["max_turns"])
        self.tasks: dict[str, str] = {}
        self.sampled = 0

    def prompts(self, count: int) -> list[dict[str, Any]]:
        """Return the first prompts of so many tasks."""
        env, rows = self.preset.make_turn(), []
        for place in range(count):
            task = f"train/{place}"
            messages, _ = env.reset(seed=0, options={"task": task})
            self.tasks[messages[-1]["content"]] = task
            rows.append({"prompt": messages})
        return rows

    def _begun(self, prompt: list[Message]) -> tuple[Any, list[Message]]:
        env = self.preset.make_turn()
        messages, _ = env.reset(seed=0, options={"task": self.tasks[prompt[-1]["content"]]})
        return env, list(messages)

    def judge(self, prompts: list[Any], completions: list[Any], completion_ids: list[Any], **_: Any) -> list[float]:
        """Return the rewards of single turns."""
        rewards = []
        for prompt, ids in zip(prompts, completion_ids, strict=True):
            env, _begun = self._begun(prompt)
            rewards.append(float(env.step(self._text(ids))[1]))
        self.sampled += sum(map(len, completion_ids))
        return rewards

    def recall(self, total: list[float], **_: Any) -> list[float]:
        """Return the rewards that :meth:`rollout` noted."""
        return total

    def _text(self, ids: list[int]) -> str:
        shown = ids[:-1] if ids and ids[-1] == self.tokenizer.eos_token_id else ids
        return str(self.tokenizer.decode(shown, skip_special_tokens=False))

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play whole conversations."""
        model = trainer.accelerator.unwrap_model(trainer.model).eval()
        begun = [self._begun(prompt) for prompt in prompts]
        envs, told = [env for env, _ in begun], [messages for _, messages in begun]
        ids = [self._encode(self._render(messages, True)) for messages in told]
        made: dict[str, list[Any]] = {"prompt_ids": [list(each) for each in ids]}
        for name in ("completion_ids", "logprobs", "env_mask"):
            made[name] = [[] for _ in prompts]
        made["total"] = [0.0] * len(prompts)
        active = list(range(len(prompts)))
        for _ in range(self.turns):
            going_on = []
            for number, (tokens, logprobs) in zip(active, self._turn(model, [ids[n] for n in active]), strict=True):
                after, reward, terminated, truncated, _info = envs[number].step(self._text(tokens))
                made["total"][number] += float(reward)
                self._append(made, ids, number, tokens, logprobs, 1)
                if not (terminated or truncated):
                    before = self._render([*after[:-1]], False)
                    tail = self._encode(self._render(after, True)[len(before) - 1 :])
                    if tokens[-1] != self.tokenizer.eos_token_id:
                        tail = [self.tokenizer.eos_token_id, *tail]
                    self._append(made, ids, number, tail, [0.0] * len(tail), 0)
                    going_on.append(number)
                self.sampled += len(tokens)
            active = going_on
            if not active:
                break
        model.train()
        return made

    def _append(
        self, made: dict[str, list[Any]], ids: list[Any], number: int, new: list[int], logprobs: list[float], own: int
    ) -> None:
        ids[number] += new
        made["completion_ids"][number] += new
        made["logprobs"][number] += logprobs
        made["env_mask"][number] += [own] * len(new)

    @torch.no_grad()
    def _turn(self, model: Any, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """Sample a reply to every prompt; return tokens and log-probabilities."""
        end, width = self.tokenizer.eos_token_id, max(map(len, prompts))
        rows = [[self.tokenizer.pad_token_id] * (width - len(each)) + each for each in prompts]
        mask = [[0] * (width - len(each)) + [1] * len(each) for each in prompts]
        out = model.generate(
            input_ids=torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=self.recipe.sampling.max_tokens,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=end,
            return_dict_in_generate=True,
            output_logits=True,
        )
        new = out.sequences[:, width:]
        logprobs = torch.stack(out.logits, 1).log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
        replies = []
        for tokens, each in zip(new.tolist(), logprobs.tolist(), strict=True):
            length = tokens.index(end) + 1 if end in tokens else len(tokens)
            replies.append((tokens[:length], each[:length]))
        return replies

    def _render(self, messages: list[Message], ask: bool) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids
