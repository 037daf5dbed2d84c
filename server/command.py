"""``turngym serve``: start the hub."""

from __future__ import annotations

import argparse
import logging
import os

from ..errors import InvalidRequest
from .settings import MIB, HubSettings, read_keys

KEY_VARIABLE = "TURNGYM_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    default = HubSettings()
    parser.add_argument("--host", default=default.host, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=default.port, help="port, 0 for a free one (default: %(default)s)")
    parser.add_argument("--env", metavar="ID,ID", help="serve these environments only (default: all)")
    parser.add_argument("--runs", metavar="DIR", help="show the training and evaluation runs in this folder")
    parser.add_argument(
        "--api-keys",
        metavar="FILE",
        help=f'ask for an API key: "name key" a line; or set {KEY_VARIABLE} to one key (default: no key is asked for)',
    )
    parser.add_argument("--max-sessions", type=int, default=default.max_sessions, help="(default: %(default)s)")
    parser.add_argument("--max-sessions-per-key", type=int, help="(default: no limit of its own)")
    parser.add_argument(
        "--idle-timeout", type=float, default=default.idle_timeout_s, metavar="S", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--step-timeout",
        type=float,
        default=default.step_timeout_s,
        metavar="S",
        help="longest time one operation of an environment may take (default: %(default)s)",
    )
    parser.add_argument(
        "--make-timeout",
        type=float,
        default=default.make_timeout_s,
        metavar="S",
        help="the same for making one in a worker process, which may build data first (default: %(default)s)",
    )
    parser.add_argument(
        "--drain-timeout", type=float, default=default.drain_timeout_s, metavar="S", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--max-body", type=float, default=default.max_body_bytes / MIB, metavar="MIB", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=default.workers,
        help="processes for environments that do not step in microseconds (default: one a core, here %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=default.threads,
        help="threads for what the other environments do off the event loop (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until the process is asked to end."""
    from .run import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(settings_of(args))
    return 0


def settings_of(args: argparse.Namespace) -> HubSettings:
    """Make the settings of the parsed arguments and the environment.

    Raises:
        InvalidRequest: an argument does not fit.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if key and args.api_keys:
        raise InvalidRequest(f"Both {KEY_VARIABLE} and --api-keys are set.", hint="Use one of them.")
    keys = read_keys(args.api_keys) if args.api_keys else {"default": key} if key else {}
    return HubSettings(
        host=args.host,
        port=args.port,
        envs=None if args.env is None else tuple(part.strip() for part in args.env.split(",") if part.strip()),
        runs=args.runs,
        api_keys=keys,
        max_sessions=args.max_sessions,
        max_sessions_per_key=args.max_sessions_per_key,
        idle_timeout_s=args.idle_timeout,
        step_timeout_s=args.step_timeout,
        drain_timeout_s=args.drain_timeout,
        max_body_bytes=int(args.max_body * MIB),
        make_timeout_s=args.make_timeout,
        workers=args.workers,
        threads=args.threads,
    )
