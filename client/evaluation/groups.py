"""Reward hooks over groups: applied to the records once every attempt at a task is there."""

from __future__ import annotations

from collections import defaultdict

from ...envs.turn.hooks import apply_group_hooks, make_hooks
from ...records import Episode, EpisodeWriter
from .folder import RunFolder
from .plan import ResolvedPlan


def settle_groups(folder: RunFolder, plan: ResolvedPlan, writer: EpisodeWriter) -> list[str]:
    """Append the episodes of complete groups again where a hook over the group revises them.

    A group is the attempts of one policy at one task with one seed. The last record of an episode counts, and hooks
    that are applied twice change nothing, so that an interrupted run may do this again.

    Returns:
        What a reader should know: groups that are not complete.
    """
    hooks = {
        env.name: [hook for hook in make_hooks(env.turn.get("hooks", {})) if hook.of_groups()] for env in plan.envs
    }
    groups: dict[str, tuple[str, str, str, int]] = {
        job.id: (env, job.policy, job.task, job.attempt // plan.pass_k)
        for job in plan.jobs()
        if hooks[env := job.group.removesuffix(f":{job.task}")]
    }
    if not groups:
        return []
    # Two readings: the first finds each episode's last record, so that the second holds no more than open groups.
    last = {episode.id: number for number, episode in enumerate(folder.episodes())}
    open_groups: dict[tuple[str, str, str, int], list[Episode]] = defaultdict(list)
    for number, episode in enumerate(folder.episodes()):
        if episode.id not in groups or last.get(episode.id) != number or episode.status == "failed":
            continue
        key = groups[episode.id]
        open_groups[key].append(episode)
        if len(open_groups[key]) == plan.pass_k:
            members = sorted(open_groups.pop(key), key=lambda member: member.attempt)
            for before, after in zip(members, apply_group_hooks(hooks[key[0]], members), strict=True):
                if after != before:
                    writer.write(after)
    names = sorted({hook.name for own in hooks.values() for hook in own})
    missing = len(open_groups)
    return [f"{missing} group(s) are not complete and lack the reward of {', '.join(names)}"] if missing else []
