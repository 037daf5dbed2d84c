"""Running an evaluation: play what is missing, put it on disk, and write metrics and report."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ... import __version__
from ...errors import EnvironmentFailed, ReplayDiverged, StepTimeout, TurngymError, Unavailable, from_problem
from ...records import Episode, EpisodeWriter
from ..policies import Policy
from ..rollout import Job, rollout
from ..sources import HubSource, LocalSource, Source
from .crosstab import SPREAD, Crosstab, crosstabs
from .definitions import DEFINITIONS, INTERVALS
from .folder import METRICS, REPORT, RunFolder
from .groups import settle_groups
from .metrics import Row, Summary, rows
from .plan import EvalPlan, ResolvedPlan, folder_name, resolve
from .progress import Progress, Quiet

DEFAULT_ROOT = "runs"
ENVIRONMENTS_FAULT = (EnvironmentFailed, ReplayDiverged, StepTimeout, Unavailable)


class Limits(msgspec.Struct, frozen=True):
    """How a run is carried out; nothing here changes what is measured.

    Attributes:
        concurrency: most episodes in play at once, and most calls to a hosted model in flight.
        retries: how often a failed call to a hosted model is repeated.
        timeout: seconds one call to a hosted model may take.
        give_up_after: after so many failed episodes of a policy in a row the rest of that policy is left for a
            later run, or, where the environment failed, its rest in that environment; 0 never gives up.
    """

    concurrency: int = 32
    retries: int = 5
    timeout: float = 600.0
    give_up_after: int = 25


class Results(msgspec.Struct):
    """What came of a run.

    Attributes:
        folder: the run's folder.
        plan: the plan, filled in.
        rows: the table; see ``metrics.Row``.
        tables: the tables that the plan lays out.
        played: episodes played now.
        kept: episodes that were there already.
        missing: episodes of the plan without a finished record.
        notes: what a reader of the numbers should know.
        problem: the last failure, where one occurred.
    """

    folder: Path
    plan: ResolvedPlan
    rows: list[Row]
    tables: list[Crosstab] = msgspec.field(default_factory=list)
    played: int = 0
    kept: int = 0
    missing: int = 0
    notes: list[str] = msgspec.field(default_factory=list)
    problem: TurngymError | None = None


def evaluate(
    plan: EvalPlan,
    out: str | os.PathLike[str] | None = None,
    *,
    url: str | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    policies: dict[str, Policy] | None = None,
) -> Results:
    """Evaluate, in a loop of its own; see :func:`evaluate_async`."""
    return asyncio.run(evaluate_async(plan, out, url=url, limits=limits, progress=progress, policies=policies))


async def evaluate_async(
    plan: EvalPlan,
    out: str | os.PathLike[str] | None = None,
    *,
    url: str | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    policies: dict[str, Policy] | None = None,
) -> Results:
    """Play every episode of the plan that is not on disk yet, then write metrics and report.

    Every finished episode is on disk before the next one is taken in hand. A run that was interrupted, by whatever,
    is resumed by the same call: finished episodes are kept, missing and failed ones are played.

    Args:
        plan: what to evaluate.
        out: the run's folder; by default "runs/NAME-HASH", the same for the same plan.
        url: address of a hub; without one, environments run in this process.
        limits: concurrency, retries and the like.
        progress: where progress is shown; nowhere by default.
        policies: ready policies by name, in place of those that the plan would make.

    Raises:
        InvalidRequest: the plan does not fit, or the folder holds the run of another plan.
        RecordError: the disk is full or the folder cannot be written; what was written is kept.
    """
    limits = limits or Limits()
    source: Source = HubSource(url) if url else LocalSource()
    try:
        resolved = await resolve(plan, source, policies or ())
        return await _Run(resolved, out, source, limits, progress or Quiet(), policies or {}).run()
    finally:
        await source.aclose()


class _Run:
    """One evaluation in progress."""

    def __init__(
        self,
        plan: ResolvedPlan,
        out: str | os.PathLike[str] | None,
        source: Source,
        limits: Limits,
        progress: Progress,
        policies: dict[str, Policy],
    ) -> None:
        self.plan = plan
        self.folder = RunFolder(out if out is not None else Path(DEFAULT_ROOT) / folder_name(plan))
        self.source = source
        self.limits = limits
        self.progress = progress
        self.ready = policies
        self.notes: list[str] = []
        # By policy, and by policy and environment.
        self.streaks: Counter[tuple[str, ...]] = Counter()
        self.given_up: set[tuple[str, ...]] = set()
        self.problem: TurngymError | None = None
        self.played = 0

    async def run(self) -> Results:
        policies = {
            spec.name: self.ready.get(spec.name)
            or spec.build(concurrency=self.limits.concurrency, retries=self.limits.retries, timeout=self.limits.timeout)
            for spec in self.plan.policies
        }
        try:
            with self.folder.open(self.plan) as writer:
                done = {summary.id for summary in self.folder.summaries() if not summary.failed}
                if self.folder.damaged:
                    self.notes.append(
                        f"{len(self.folder.damaged)} damaged line(s) of the records were left out and played again "
                        f"({self.folder.damaged[0].detail})"
                    )
                await self._play(policies, done, writer)
                self.notes += settle_groups(self.folder, self.plan, writer)
            return self._finish(len(done))
        finally:
            self.folder.close()
            for policy in policies.values():
                await policy.aclose()

    async def _play(self, policies: dict[str, Policy], done: set[str], writer: EpisodeWriter) -> None:
        kept = sum(job.id in done for job in self.plan.jobs())
        self.progress.start(self.plan.total, kept)
        try:
            async for episode in rollout(
                policies,
                self._missing(done),
                source=self.source,
                concurrency=self.limits.concurrency,
                keep_prompts=self.plan.keep_prompts,
            ):
                writer.write(episode)
                self.played += 1
                self._watch(episode)
                self.progress.advance(episode)
        finally:
            self.progress.stop()

    def _missing(self, done: set[str]) -> Iterator[Job]:
        for job in self.plan.jobs():
            if job.id not in done and self.given_up.isdisjoint(_keys(job.policy, job.wanted.env)):
                yield job

    def _watch(self, episode: Episode) -> None:
        """Note failures, and give a policy up that fails again and again."""
        whole, here = _keys(episode.policy, episode.env)
        if episode.status != "failed":
            self.streaks[whole] = self.streaks[here] = 0
            return
        self.problem = from_problem(episode.error or {})
        # An environment that fails says nothing about how the policy does in others.
        key = here if isinstance(self.problem, ENVIRONMENTS_FAULT) else whole
        self.streaks[key] += 1
        if 0 < self.limits.give_up_after <= self.streaks[key] and key not in self.given_up:
            self.given_up.add(key)
            self.notes.append(
                f"{' was given up in '.join(key) if key is here else f'{episode.policy} was given up'} after "
                f"{self.streaks[key]} failures in a row: {self.problem.detail.rstrip('.')}"
            )

    def _finish(self, kept: int) -> Results:
        results = write_results(self.folder, self.plan, self.notes)
        results.played, results.kept, results.problem = self.played, kept, self.problem
        return results


def _keys(policy: str, env: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (policy,), (policy, env)


def write_results(folder: RunFolder, plan: ResolvedPlan, notes: list[str]) -> Results:
    """Write metrics and report of what a folder holds.

    Raises:
        RecordError: the records cannot be read, or the disk refused.
    """
    # In the plan's order and not that of finishing, so that equal episodes give equal numbers and intervals.
    found = {summary.id: summary for summary in folder.summaries()}
    summaries = [found[job.id] for job in plan.jobs() if job.id in found]
    done = sum(not summary.failed for summary in summaries)
    results = Results(
        folder.path,
        plan,
        rows(summaries),
        crosstabs(plan, summaries),
        missing=plan.total - done,
        notes=[*_left_out(plan), *_sizes(plan), *notes],
    )
    at_once = sum(summary.overflow and summary.turns == 0 for summary in summaries)
    if at_once:
        results.notes.append(
            f"{at_once} episodes did not fit the model's context in their first turn; lower the reply's token limit"
        )
    if results.missing:
        results.notes.append(f"{results.missing} of {plan.total} episodes have no finished record")
    folder.write(METRICS, metrics_json(results))
    folder.write(REPORT, _report(folder, results, summaries))
    return results


def _report(folder: RunFolder, results: Results, summaries: list[Summary]) -> bytes:
    from .report import build_report

    return build_report(results.plan, results.rows, results.tables, summaries, folder.episodes, results.notes)


def metrics_json(results: Results) -> bytes:
    """Return ``metrics.json``: the rows, what each number means, and the plan."""
    data = {
        "schema": "turngym.metrics",
        "version": 1,
        "turngym": __version__,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rows": results.rows,
        "tables": results.tables,
        "notes": results.notes,
        "definitions": {name: definition.text for name, definition in DEFINITIONS.items()},
        "intervals": INTERVALS,
        "spread": SPREAD,
        "plan": results.plan,
    }
    return msgspec.json.format(msgspec.json.encode(data), indent=2)


def _left_out(plan: ResolvedPlan) -> list[str]:
    """Name the environments that could not be played."""
    return [f"{name} was left out: {why.rstrip('.')}" for name, why in plan.left_out.items()]


def _sizes(plan: ResolvedPlan) -> list[str]:
    """Say where a split has fewer tasks than were asked for."""
    return [
        f"{name} has {size} tasks in split {split}; all were taken"
        for name, splits in plan.sizes.items()
        for split, size in splits.items()
        if size < plan.episodes
    ]
