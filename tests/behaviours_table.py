"""The project's behaviours and the tests that prove them: writes docs/behaviours.md from the tests' docstrings.

A test proves a behaviour when the test's docstring begins with the behaviour's id: `C11: …`, `S9, I7: …`. This file
defines the ids. Run this file after adding a test; `tests/test_behaviours.py` fails when the document is stale, when an
id is not defined, and when a behaviour of `MUST` has no test.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "behaviours.md"

GROUPS = {
    "A": "Barrier alignment",
    "U": "Unaligned checkpoints, and failures mid-stream",
    "C": "Checkpoints: trigger, acknowledge, decline, expire, subsume",
    "S": "Incremental snapshots and shared files",
    "R": "Restoring",
    "T": "Transactional sinks",
    "Z": "Zombies and fencing",
    "F": "Coordinator failover",
    "O": "Storage faults",
    "B": "Bad input",
    "I": "Invariants",
    "G": "Security of the coordinator",
    "H": "Security between slots",
    "J": "Security of stored data",
}

BEHAVIOURS = {
    "A1": "without barriers data passes one to one and in order",
    "A2": "a single channel takes every barrier at once and never blocks",
    "A3": "a channel is blocked from its barrier until the last channel's, exactly",
    "A4": "a newer barrier during alignment aborts the older checkpoint once; its late barriers do nothing",
    "A5": "start delay, alignment time and bytes during alignment are measured",
    "A6": "an abort for a checkpoint whose barriers are on their way leaves nothing blocked",
    "A7": "alignment completes when channels had ended before it began",
    "A8": "a channel that ends during alignment counts as aligned; nothing hangs",
    "A9": "an aborted checkpoint is aborted once, with its reason, and the next one works",
    "A10": "barriers of older generations, of unknown or of past checkpoints are dropped and counted",
    "A11": "a subtask that does not take part in a barrier ends in a clean failure in bounded time",
    "U1": "in flight is exactly what came after the first barrier was seen and before the barrier of its own channel",
    "U2": "barriers that come together, and empty queues, store nothing",
    "U3": "what was recorded for an aborted checkpoint is dropped, and nothing is written for it later",
    "U4": "operators hear of an abort before the rest of the snapshot is called off",
    "U5": "aligned and unaligned checkpoints may alternate; each is taken once",
    "U6": "a checkpoint that is aligned for too long is taken once, unaligned, before, at or after its first barrier",
    "U7": "a barrier that was overtaken upstream is not aligned downstream",
    "U8": "the checkpoint after one that was late is aligned again",
    "U9": "without a timeout a checkpoint is aligned however long it takes",
    "U10": "failures in an operator, a snapshot, a recovery and at the end: nothing lost, doubled or out of order",
    "U11": "with several inputs, obsolete barriers and odd orders what is in flight is complete",
    "U12": "a row that comes after the barrier belongs to the next checkpoint, also when this one fails",
    "C1": "with tasks missing no checkpoint is triggered",
    "C2": "a decline ends a checkpoint once; duplicate acks and later declines have no effect",
    "C3": "a decline leaves other checkpoints under way untouched",
    "C4": "a checkpoint that all have acknowledged completes once and is told once",
    "C5": "concurrent checkpoints complete each on its own last ack",
    "C6": "a completed checkpoint subsumes older ones; their late acks are ignored",
    "C7": "an expired checkpoint is dropped and never told complete",
    "C8": "messages for unknown jobs, checkpoints or tasks have no effect and raise nothing",
    "C9": "late and duplicate acks neither revive a checkpoint nor harm another's files",
    "C10": "ids and times rise; minimum pause and concurrency are honoured; nothing after stop",
    "C11": "consecutive countable failures beyond the tolerance fail the generation; a success resets the count",
    "C12": "a store that fails surely ends the checkpoint; one that fails ambiguously lets nothing be deleted",
    "C13": "aborting a checkpoint that reused files leaves the earlier one restorable",
    "C14": "older checkpoints go only when the newer one is durable; recovery is in the order of the log",
    "C15": "an unreadable checkpoint or record stops recovery and is never skipped",
    "C16": "a coordinator that ended decides nothing more and keeps everything",
    "C17": "every operator hears of an aborted checkpoint exactly once",
    "C18": "bounded input ends with a final, committed checkpoint, also after a failover in between",
    "S1": "exactly what no retained checkpoint uses is deleted",
    "S2": "a restored checkpoint stays until nobody needs it, then it goes",
    "S3": "what a failed checkpoint uploaded or reused does no harm to the one before",
    "S4": "two checkpoints in flight may share a file; neither deletes it from the other",
    "S5": "deleting rests on marks taken anew from manifests, never on stored counts",
    "S6": "the same file name with new content is uploaded again",
    "S7": "after a restore to an older state no old name is taken for an old file",
    "S8": "a file number that compaction gives again is not taken for the uploaded file",
    "S9": "sweeping spares uploads under way and shared files, goes manifests first, and may crash anywhere",
    "S10": "what is malformed or not ours is not deleted, and unreadable facts turn deleting off",
    "S12": "large state comes back byte for byte",
    "R1": "state continues over 1→2→3 and 3→2→1 with exact key groups",
    "R2": "crashes in mid-snapshot, restores at other parallelisms: what is visible is what was checkpointed",
    "R3": "counts and window sums are exact after any number of failures",
    "R4": "every retained checkpoint can be restored; an older one only when replay is allowed",
    "R5": "another max_parallelism is refused with both numbers",
    "R6": "state with a TTL keeps its times over restores, at another parallelism too; a TTL may come, go and change",
    "R7": "a wall-clock timer fires once, at another parallelism too; one of downtime before new rows of its key",
    "T1": "a late notice of an older checkpoint commits nothing twice",
    "T2": "a completed checkpoint makes all transactions up to it visible, and no later one",
    "T3": "death between pre-commit and notice: committed exactly once after recovery",
    "T4": "a commit that fails is repeated for ever, shown, and never dropped",
    "T5": "commit trouble is told apart: retried, or fatal to the job",
    "T6": "committing twice is harmless; committing what was aborted is an error",
    "T7": "an empty transaction commits as a successful no-op",
    "T8": "leftovers of another parallelism are aborted or committed as the checkpoint says",
    "T9": "clean-up never touches what a decided checkpoint names",
    "T10": "failures of persisting, committing and marking, kills between them, and crashes in recovery: no duplicate",
    "T11": "a repeated commit uses the stored identity, never a new one",
    "T12": "a concurrent reader sees no duplicate, gap or reordering",
    "T13": "the last rows of bounded input are committed by the real final checkpoint",
    "T14": "a fresh start with low ids on a target that has seen higher ones skips and doubles nothing",
    "T15": "rows of an expired checkpoint are visible once, with the next; after a restart only the new generation's",
    "Z1": "an old handle that writes after the job was opened anew is fenced, under storage faults too",
    "Z2": "an owner paused between claiming and using is fenced by who opened meanwhile",
    "Z3": "the loser of a log position adopts what it finds and goes one further, or stops",
    "Z4": "the generation never goes down",
    "Z5": "a writer cannot append behind or beside the highest generation",
    "Z6": "a record with our identity is ours; any other at our position means stop",
    "Z7": "no sink is called before ownership is proven",
    "Z8": "a process that stood still and wakes as a zombie is refused by everybody and leaves",
    "Z9": "workers whose executor or daemon died end by themselves in bounded time",
    "Z10": "of two attempts of one slot one is accepted",
    "Z11": "a commit that is delayed past the next transaction has no effect on it",
    "F1": "crash before the decision: it never happened",
    "F2": "crash between the decision and its answer: it is decided",
    "F3": "crash before anyone was told: the successor tells",
    "F4": "crash with half of the slots told: the successor tells the rest",
    "F5": "crash before the commit was noted: it is repeated without effect",
    "F6": "two live coordinators: one log, no fork",
    "F7": "continuous kills: progress in the gaps",
    "F8": "a generation starts right from every state of the log, and replays commits that are due",
    "F9": "losing leadership or leaving in any way deletes nothing",
    "F10": "checkpoint ids are never used again after a failover",
    "F11": "a read error during recovery is retried or fails; it never means an empty start",
    "O1": "a record is recognised as one's own by its identity",
    "O2": "409 is repeated; 412 on our own record is success, on another's it is fencing",
    "O3": "a put that lands late has one outcome",
    "O4": "a truncated read is noticed",
    "O5": "storms of errors are borne within a budget and then told",
    "O6": "a store that is away for long, also inside recovery, is waited for",
    "O7": "a full disk ends a snapshot or a download cleanly",
    "O8": "one flipped byte anywhere is refused, with the object and both hashes",
    "O9": "a store that ignores conditions is refused at the start",
    "O10": "stale and partial lists change no decision",
    "O11": "connections clogged one by one do no harm",
    "O12": "what a folder acknowledged is there, whole, after a power cut at any moment",
    "B1": "keys and names that lead elsewhere are refused",
    "B2": "path tricks in the ids of the REST interface are refused",
    "B3": "a frame with a wrong MAC, checksum, version, length or sequence closes the connection before allocation",
    "B4": "pickle or rubbish where data is expected is refused undecoded",
    "B5": "too few slots or unfit settings of Spark fail fast with a clear text",
    "B6": "an unknown version is refused, never guessed at",
    "I1": "log positions are contiguous and immutable",
    "I2": "a decision names a manifest whose every file existed, with its hash, before it",
    "I3": "tokens never decrease along the log",
    "I4": "a row is visible only if a completed checkpoint lists its transaction",
    "I5": "rows of every completed checkpoint become visible exactly once, in order per sink",
    "I6": "what is visible always equals one vector of source positions",
    "I7": "nothing that a retained manifest reaches, nor anything of an unfenced generation, is deleted",
    "I8": "an ack counts only for the current token",
    "I9": "an unknown put outcome blocks deciding and deleting",
    "I10": "finished means that all is committed",
    "G1": "REST listens on loopback unless told otherwise",
    "G2": "every route but health and the login needs the token or a session of the page; the token's file is private",
    "G3": "no code and no file is taken over HTTP",
    "G4": "ids are checked before any path or key is built of them",
    "G5": "request bodies are bounded in size, depth and time",
    "G6": "orders are idempotent and audited",
    "G7": "what slots say is authenticated, bound to generation and process, and only data",
    "H1": "data connections prove token, job secret and identity; frames are bounded, numbered and checked",
    "H2": "nobody on the wire reads or changes rows and messages, unless the network is declared as trusted",
    "H3": "only expected peers are accepted; a slow or half-open handshake times out",
    "H4": "nothing from network or storage is unpickled",
    "J1": "manifests and log form a chain of hashes",
    "J2": "every hash is verified before restored files are opened",
    "J4": "the database is opened in raw mode, and no configuration from the store is trusted",
    "J5": "the policy of the bucket that the documents give names every prefix that is written",
    "J6": "secrets appear in no log, page, message or manifest",
    "J7": "local folders are private and are removed",
}

MUST = tuple(
    f"{group}{number}"
    for group, numbers in {
        "A": (2, 3, 4, 6, 7, 8, 9, 10),
        "U": tuple(range(1, 13)),
        "C": (2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 15, 18),
        "S": (1, 3, 6, 7, 8, 9, 10, 12),
        "R": (1, 2, 4, 5),
        "T": (1, 2, 3, 4, 7, 8, 10, 11, 13, 14, 15),
        "Z": (1, 2, 3, 4, 5, 6, 8, 9, 10, 11),
        "F": (1, 2, 3, 4, 5, 6, 8, 9, 11),
        "O": (1, 2, 3, 4, 8, 9),
        "B": (1, 2, 3, 4, 5),
    }.items()
    for number in numbers
)

_ID = r"[A-Z][0-9]{1,2}"
_LEADING = re.compile(rf"{_ID}(?:, {_ID})*(?=[:.,;]|\s|$)")
_DOCSTRING = re.compile(rf'"""\s*{_ID}')  # other files need no parsing


@cache
def proofs() -> dict[str, list[str]]:
    """Behaviour id -> tests whose docstrings begin with the id, as path::name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in _outermost(text) if _DOCSTRING.search(text) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for identity in leading_ids(ast.get_docstring(node) or ""):
                    found.setdefault(identity, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return {identity: sorted(tests) for identity, tests in found.items()}


def _outermost(text: str) -> Iterator[ast.stmt]:
    """Statements among which tests are: those of a module, and of the module's classes."""
    for node in ast.parse(text).body:
        yield node
        if isinstance(node, ast.ClassDef):
            yield from node.body


def leading_ids(docstring: str) -> list[str]:
    match = _LEADING.match(docstring)
    return match.group().split(", ") if match else []


def document() -> str:
    found = proofs()
    lines = [
        "# Behaviours, and the tests that prove them",
        "",
        "Written by `tests/behaviours_table.py` from the docstrings of the tests. **Bold** ids must have a test.",
    ]
    for group, title in GROUPS.items():
        lines += ["", f"## {group} · {title}", "", "| id | behaviour | tests |", "|---|---|---|"]
        for identity, behaviour in BEHAVIOURS.items():
            if identity[0] == group:
                shown = f"**{identity}**" if identity in MUST else identity
                tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in found.get(identity, ()))
                lines.append(f"| {shown} | {behaviour} | {tests or '—'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(document(), encoding="utf-8")
    print(f"{DOCUMENT.relative_to(ROOT)}: {len(proofs())} of {len(BEHAVIOURS)} behaviours have tests")
