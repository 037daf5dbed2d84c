"""``turngym serve``: start the hub."""

from __future__ import annotations

import argparse
import os

from .run import serve
from .settings import HubSettings, read_keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    default = HubSettings()
    parser.add_argument("--host", default=default.host, help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=default.port, help="port; 0 takes a free one (default %(default)s)")
    parser.add_argument("--env", default=None, metavar="A,B", help="serve these environments only (default: all)")
    parser.add_argument(
        "--api-key-file", default=None, metavar="FILE", help='API keys, one "name key" a line (or set TURNGYM_API_KEY)'
    )
    parser.add_argument("--max-sessions", type=int, default=default.max_sessions, help="sessions at most")
    parser.add_argument("--max-sessions-per-key", type=int, default=None, help="sessions of one API key at most")
    parser.add_argument("--idle-timeout", type=float, default=default.idle_timeout_s, metavar="S", help="evict after")
    parser.add_argument("--step-timeout", type=float, default=default.step_timeout_s, metavar="S", help="limit of a step")
    parser.add_argument(
        "--drain-timeout", type=float, default=default.drain_timeout_s, metavar="S", help="grace after SIGTERM"
    )
    parser.add_argument("--max-body-mib", type=int, default=default.max_body_bytes >> 20, help="largest request body")
    parser.add_argument("--workers", type=int, default=default.workers, help="threads for slow environments")


def settings_of(args: argparse.Namespace) -> HubSettings:
    """Return the settings that the arguments and the environment variables give."""
    keys = read_keys(args.api_key_file) if args.api_key_file else {}
    if key := os.environ.get("TURNGYM_API_KEY"):
        keys.setdefault("default", key)
    return HubSettings(
        host=args.host,
        port=args.port,
        envs=tuple(name.strip() for name in args.env.split(",")) if args.env is not None else None,
        api_keys=keys,
        max_sessions=args.max_sessions,
        max_sessions_per_key=args.max_sessions_per_key,
        idle_timeout_s=args.idle_timeout,
        step_timeout_s=args.step_timeout,
        drain_timeout_s=args.drain_timeout,
        max_body_bytes=args.max_body_mib << 20,
        workers=args.workers,
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    serve(settings_of(args))
    return 0
