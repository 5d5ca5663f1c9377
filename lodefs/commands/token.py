"""``lodefs token``: who may read over TCP."""

from __future__ import annotations

import time
from pathlib import Path

import click

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.settings.session import Session


@click.group(epilog=cli.examples("lodefs token --file /etc/lodefs/tokens create team-a 'vision/*'"))
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The proxy's tokens file.",
)
@click.pass_context
def token(ctx: click.Context, path: Path | None) -> None:
    """Tokens for clients of the proxy over TCP. The default FILE is `tokens_file` of [serve]."""
    ctx.meta["lodefs.tokens_file"] = path


def _file(session: Session) -> Path:
    given = click.get_current_context().meta.get("lodefs.tokens_file")
    named = given or session.config.serve.get("tokens_file")
    if not named:
        raise InvalidInput(
            "no tokens file is given: use --file, or `tokens_file` in the table [serve]"
        )
    return Path(str(named))


@cli.command(
    "lodefs token create team-a 'vision/*' audio",
    "lodefs token create --s3 team-b 'vision/*' >team-b.env",
    "lodefs token create --write 'vision/*' ci 'vision/*'",
    group=token,
)
def create(
    session: Session,
    name: str = cli.argument(),
    patterns: tuple[str, ...] = cli.argument("PATTERN...", required=True),
    s3: bool = cli.option("Also make a key for S3's clients."),
    write: tuple[str, ...] = cli.option(
        "Also let it write, with Git LFS, to these repositories; may be repeated.",
        metavar="PATTERN",
        multiple=True,
    ),
    as_json: bool = cli.JSON,
) -> None:
    """Create a token for the repositories that match a PATTERN (vision/*, *).

    The token is printed once and not stored. With --s3, three variables are printed that
    clients of the proxy and of its S3 endpoint read from their environment.
    """
    from lodefs.proxies.tokens_in_use import await_taken, digest_or_none
    from lodefs.proxy.http.tokens import create_s3_token, create_token

    path, now_s = _file(session), int(time.time())
    before = digest_or_none(path)
    keys = {}
    if s3:
        made = create_s3_token(path, name, patterns, now_s=now_s, write=write)
        secret = made.text
        keys = {"access_key": name, "secret_key": made.s3_secret}
    else:
        secret = create_token(path, name, patterns, now_s=now_s, write=write)
    if as_json:
        cli.write_json({"name": name, "patterns": list(patterns), "token": secret, **keys})
    elif s3:
        cli.write_line(f"LODEFS_TOKEN={secret}")
        cli.write_line(f"AWS_ACCESS_KEY_ID={name}")
        cli.write_line(f"AWS_SECRET_ACCESS_KEY={keys['secret_key']}")
    else:
        cli.write_line(secret)
    try:
        await_taken(session, path, before)
    except Unavailable as error:  # the token is made, and has been shown
        cli.warn(f"the new token may not be let in yet: {error}")


@cli.command("lodefs token list", name="list", group=token)
def list_(session: Session, as_json: bool = cli.JSON) -> None:
    """List tokens: name, time, patterns, and those for writing. The tokens are not stored."""
    from lodefs.proxy.http.tokens import list_tokens

    for one in list_tokens(_file(session)):
        if as_json:
            view = {"name": one.name, "patterns": one.patterns, "write": one.write_patterns}
            cli.write_json({**view, "time_s": one.created_s})
        else:
            patterns = text.escaped(" ".join(one.patterns))
            if one.write_patterns:
                patterns += f"  writes {text.escaped(' '.join(one.write_patterns))}"
            cli.write_line(f"{text.escaped(one.name):<24} {text.time(one.created_s)}  {patterns}")


@cli.command("lodefs token delete team-a", group=token)
def delete(session: Session, name: str = cli.argument()) -> None:
    """Delete a token, and wait until the proxy lets nobody in with it.

    The exit code is 7 if a proxy of this machine that uses FILE has not read it after ten seconds:
    then FILE no longer has the token, but that proxy may still accept it. Proxies of other machines
    are not asked.
    """
    from lodefs.proxies.tokens_in_use import await_taken, digest_or_none
    from lodefs.proxy.http.tokens import delete_token

    path = _file(session)
    before = digest_or_none(path)
    delete_token(path, name)
    try:
        is_used = await_taken(session, path, before)
    except Unavailable as error:
        raise Unavailable(
            f"the token {text.escaped(name)} is out of the file, but {error} "
            "(it must be readable for the proxy's user: `lodefs doctor`)"
        ) from error
    cli.write_line(f"deleted the token {text.escaped(name)}")
    if not is_used:
        cli.warn(f"no proxy that runs here uses {path}")
