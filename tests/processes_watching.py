"""A process that watches a folder while others change the collection: a part of the campaign.

Its files change before every step. The watcher, and what takes its place, may be killed at any
moment, or end because another process has reindexed. Until it has ended, nobody knows how far it
is: documents of the folder may be as their files have been at any time since it began, and all
others must be as in the model. If it ends because it is asked to, the collection must be in step.
"""

import re
import select
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from expected import Found, Record, State
from faults import Action

if TYPE_CHECKING:
    from processes_campaign import Campaign, Member

BESIDE = {
    "open_or_close",
    "warm",
    "search",
    "add",
    "add_again",
    "delete",
    "update",
    "index_fields",
    "optimize",
    "reindex",
    "prepare",
    "discard",
    "refresh",
    "verify",
    "backup",
    "peek",
    "restore",
    "leave",
    "kill",
    "together",
    "slow_add",
}
"""Steps that are taken while a process watches."""
_MOMENTARY = re.compile(
    "no document|was replaced|is missing|no such collection|cannot be read|being written to"
)
"""What a pass may fail for, to be tried again: all files were moved, or the folder was replaced."""


class Watching:
    """Some steps beside a watcher.

    Attributes:
        member: the process that watches; None while no process watches.
    """

    def __init__(self, campaign: "Campaign") -> None:
        self._campaign, self._folder = campaign, campaign.watched
        self._left = campaign.random.randint(1, 8)
        self._since = self._folder.now
        self._seen: Mapping[str, Any] = self._texts(campaign.current)
        self.member: Member | None = None
        campaign.watching = self
        campaign.counts["watches"] += 1

    def before_step(self) -> None:
        """Change files; see that there is a watcher, by the encoder that the collection has."""
        random, campaign = self._campaign.random, self._campaign
        for _ in range(random.choice([0, 1, 1, 2, 4])):
            campaign._note(self._folder.change())
            campaign.counts["file changes"] += 1
        if self.member is not None and self._has_died(self.member):
            self._killed(self.member)
        if self.member is not None and campaign._is_stale(self._engine(self.member)):
            self._stop()
        if self.member is None and len(campaign.members) > 2:
            self._start()

    def after_step(self) -> None:
        """Kill the watcher, or end."""
        self._left -= 1
        if self._left <= 0:
            self.end()
        elif self.member is not None and self._campaign.random.random() < 0.25:
            self._kill()

    def end(self) -> None:
        """Let the watcher end, in step with the folder, or by a kill."""
        campaign = self._campaign
        if self.member is not None and campaign.random.random() < 0.3:
            self._kill()
        in_step = self.member is not None and self._stop()
        campaign._settle([campaign.current], verify=True)
        if in_step:
            campaign.counts["watches that ended in step"] += 1
            if problem := self._folder.not_followed(self._seen, self._folder.now):
                raise Found("lost", f"watch: {problem}")
        campaign.watching = None
        for member in campaign.members:  # nobody knows how much of the folder each shows
            if member.engine is not None and member.engine.shown is not None:
                campaign._show_newest(member, member.engine)

    def restored(self, state: State) -> None:
        """Another folder has taken the place of the collection."""
        self._seen = self._texts(state)

    def seen(self, state: State, held: Mapping[str, Any]) -> State:
        """A state with the documents of the folder that the collection holds. Raises Found."""
        texts = {key: (title, text) for key, (title, text, _) in held.items()}
        if problem := self._folder.wrong_change(self._seen, texts, self._since):
            raise Found("wrong", f"watch: {problem}")
        self._seen = texts
        records = {k: r for k, r in state.records.items() if not k.startswith(self._folder.prefix)}
        for key, (title, text, metadata) in held.items():
            path = key.removeprefix(self._folder.prefix)
            if (metadata["path"], metadata["size"]) != (path, len(text)):
                raise Found("mixed", f"{key} has the metadata {metadata}")
            records[key] = Record(title, text, metadata, metadata)
        return State(records, state.encoder)

    def _texts(self, state: State) -> Mapping[str, tuple[str, str]]:
        prefix = self._folder.prefix
        return {k: (r.title, r.text) for k, r in state.records.items() if k.startswith(prefix)}

    def _start(self) -> None:
        campaign = self._campaign
        self.member = campaign.random.choice(campaign.members)
        campaign._used(self.member)
        campaign._call(self.member, "stats")
        campaign.members.remove(self.member)
        die = None
        if campaign.random.random() < 0.2 and campaign.weights["kill"]:
            die = campaign.random.randint(1, 90), campaign.random.choice([Action.KILL, Action.TEAR])
        campaign._note(f"{self.member.name} watches" + (f", dies {die}" if die else ""))
        self.member.process.send("watch", self._folder.path, self._folder.prefix, die=die)
        campaign.counts["watchers"] += 1

    def _stop(self) -> bool:
        """Ask the watcher to end; whether it has, in step with the folder."""
        campaign, member = self._campaign, self.member
        assert member is not None
        engine = self._engine(member)
        campaign._note(f"{member.name} is asked to end watching")
        try:
            member.process.connection.send("end")
            reply = member.process.receive()
        except (EOFError, ConnectionError):
            self._killed(member)
            return False
        self.member = None
        campaign.members.append(member)
        if campaign._is_stale(engine):
            campaign.counts["watchers of a former encoder"] += 1
            if reply.error is None or reply.error[0] != "EncoderMismatch":
                raise Found("error", f"{member.name} watch: {reply.error}, {reply.value}")
            campaign._call(member, "close")
            member.engine = None
            return False
        if reply.error is not None:
            raise Found("error", f"{member.name} watch: {reply.error}")
        campaign.counts["passes reported"] += len(reply.value)
        for problem in filter(None, reply.value):
            campaign.counts["passes that failed"] += 1
            if not _MOMENTARY.search(problem):
                raise Found("error", f"{member.name} watch: {problem}")
        return True

    def _kill(self) -> None:
        member = self.member
        assert member is not None
        if not self._campaign.weights["kill"]:
            return
        member.process.kill()
        self._killed(member)

    def _killed(self, member: "Member") -> None:
        campaign = self._campaign
        campaign._note(f"{member.name} is killed while it watches")
        self.member = None
        member.process.wait()
        member.process.close()
        if not member.forked:
            campaign._start()
        campaign.counts["kills"] += 1
        campaign.counts["kills of watch"] += 1
        campaign._settle([campaign.current], verify=True)
        campaign._decide()

    @staticmethod
    def _engine(member: "Member") -> Any:
        assert member.engine is not None
        return member.engine

    @staticmethod
    def _has_died(member: "Member") -> bool:
        return bool(select.select([member.process._ended], [], [], 0)[0])
