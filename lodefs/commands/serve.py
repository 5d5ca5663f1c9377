"""``lodefs serve``."""

from __future__ import annotations

import click

from lodefs.cli import options as cli
from lodefs.settings.session import Session


@cli.command(
    "lodefs serve --store s3://bucket/datasets --cache /var/cache/lodefs --cache-size 500GiB",
    "lodefs serve --s3-listen 127.0.0.1:7480 --tokens /etc/lodefs/tokens",
    store=True,
)
@click.option("--socket", "socket_path", metavar="PATH", help="Unix socket; '' for none.")
@click.option("--listen", metavar="HOST:PORT", help="TCP address; needs tokens.")
@click.option("--s3-listen", metavar="HOST:PORT", help="TCP address for S3's clients.")
@click.option("--upstream", "hub_upstream", metavar="URL", help="Hub to fetch from.")
@click.option("--cache", "cache_dir", metavar="DIR", help="Directory of the cache.")
@click.option(
    "--cache-size",
    "cache_size_bytes_max",
    metavar="SIZE",
    help="Limit, such as 100GiB [80 % of the free space].",
)
@click.option("--tokens", "tokens_file", metavar="FILE", help="Tokens for TCP.")
@click.option("--tls-cert", "tls_cert_file", metavar="FILE", help="Certificate for TCP (PEM).")
@click.option("--tls-key", "tls_key_file", metavar="FILE", help="Its private key (PEM).")
@click.option("--allow-anonymous", is_flag=True, default=None, help="TCP without tokens.")
@click.option(
    "--unused-timeout",
    "unused_timeout_s",
    metavar="S",
    help="End after S seconds without a mount or a request; 0: never [0].",
)
@click.option("--log-level", help="debug, info, warning or error.")
@click.option("--log-format", help="auto, journald, json or console.")
def serve(session: Session, **options: object) -> None:
    """Run the node's proxy until SIGTERM or SIGINT.

    The table [serve] of the config file takes all settings; options win.
    """
    from lodefs.proxy.config import Config
    from lodefs.proxy.service.main import main
    from lodefs.proxy.service.systemd import told_to_systemd

    with told_to_systemd(session.environment):
        main(Config.from_mapping(settings(session, options)))


def settings(session: Session, options: dict[str, object]) -> dict[str, object]:
    """Returns the proxy's settings: of the config file, overridden by options."""
    s3 = session.config.s3
    found: dict[str, object] = {
        **session.config.serve,
        "store": session.store_url,
        "access": session.config.access,
        "sources": session.config.sources,
        "endpoint_url": s3.endpoint_url,
        "region": s3.region,
    }
    if s3.transfer_timeout_s is not None:
        found["transfer_timeout_s"] = s3.transfer_timeout_s
    return found | {name: value for name, value in options.items() if value is not None}
