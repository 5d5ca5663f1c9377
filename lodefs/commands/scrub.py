"""``lodefs scrub``: reads a share of the store every day."""

from __future__ import annotations

import click

from lodefs.cli import exit_codes, text
from lodefs.cli.options import examples, json_option, session_command, write_json, write_line
from lodefs.cli.parsed_type import RATE
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

EPILOG = examples(
    "lodefs scrub --share 1/30 --rate 200MB              # once a day: all of it within 30 days",
    "lodefs scrub --share 1/1                            # all of it, now",
)


@click.command(epilog=EPILOG)
@click.option("--share", default="1/30", metavar="N/M", help="How much of the store [1/30].")
@click.option("--rate", type=RATE, metavar="SIZE", help="At most so much a second, such as 200MB.")
@click.option("--workers", type=click.IntRange(1, 64), default=4, help="Parallel reads [4].")
@json_option
@session_command(store=True)
def scrub(session: Session, share: str, rate: int | None, workers: int, as_json: bool) -> None:
    """Read a share of the store's packs and check every byte, to find what has rotted before a
    reader does.

    The next run goes on where this one ends, from any machine: how far it is stands in the store.
    Lists what is damaged, also what earlier runs have found, and exits with 1 if there is any;
    `lodefs repair --data` says of which versions it is.
    """
    from lodefs.chunkstore.repair.scrub import ScrubOptions, parse_share
    from lodefs.chunkstore.repair.scrub import scrub as scrub_store

    options = ScrubOptions(parse_share(share), rate, workers)
    with show_progress() as progress:
        result = scrub_store(session.store.objects, options, progress)
    ledger = result.ledger
    if as_json:
        write_json(
            {
                "packs": result.packs,
                "read_bytes": result.size_bytes,
                "store_packs": result.store_packs,
                "store_bytes": result.store_bytes,
                "rounds": ledger.rounds,
                "round_began_s": ledger.began_s or None,
                "round_ended_s": ledger.ended_s or None,
                "round_packs": ledger.checked_packs,
                "problems": [
                    {"pack": damage.pack_id.hex(), "message": damage.what}
                    for damage in result.spoilt
                ],
            }
        )
    else:
        for damage in result.spoilt:
            write_line(text.escaped(f"pack {damage.pack_id.hex()}: {damage.what}"))
        write_line(
            f"{text.count(result.packs, 'pack')}, {text.size(result.size_bytes)} read, of "
            f"{text.count(result.store_packs, 'pack')}, {text.size(result.store_bytes)}; "
            + (text.count(len(result.spoilt), "problem") if result.spoilt else "all is well")
        )
        ended = f", the last on {text.time(ledger.ended_s)}" if ledger.ended_s else ""
        write_line(
            f"this round: {text.count(ledger.checked_packs, 'pack')} so far; "
            f"{text.count(ledger.rounds, 'round')} before{ended}"
        )
    if result.spoilt:
        session.exit_code = exit_codes.FAILURE
