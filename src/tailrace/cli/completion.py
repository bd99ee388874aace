"""`tailrace completion`: print the script that makes a shell complete tailrace's commands and options."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Examples:
      bash, in ~/.bashrc:    eval "$(tailrace completion bash)"
      zsh, in ~/.zshrc:      eval "$(tailrace completion zsh)"
      fish:                  tailrace completion fish > ~/.config/fish/completions/tailrace.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"this version of click cannot complete commands in {shell}: upgrade click")
    click.echo(found(ctx.find_root().command, {}, "tailrace", "_TAILRACE_COMPLETE").source())
