"""What docs/integrations.md shows of other programs."""

import json
import re

from conftest import REPOSITORY

from searchengine.cli import cli

PAGE = (REPOSITORY / "docs" / "integrations.md").read_text()


def test_the_configuration_names_the_command() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    server = json.loads(text)["mcpServers"]["notes"]
    assert server["command"] == "searchengine" and server["args"][0] in cli.commands
