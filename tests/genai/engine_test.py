"""onnxruntime-genai's Engine, unmodified, serves the packed packages of target sluice on a CPU: ragged continuous batches,
several turns, and drafts with rollback, all with the tokens that transformers generates."""
import tempfile

import numpy as np
import onnxruntime_genai as og

from common import GOLDENS, Checks, cases, config_of, export, sequences
from dense_test import eos_of, until_eos


TOKEN, TURN_FINISHED, FAILED = 1, 2, 8  # event flags


class Served:
    """One request on an engine."""

    def __init__(self, engine, session_tokens):
        options = og.RequestOptions()
        options.set_max_session_tokens(session_tokens)
        self.request = engine.create_request(options=options)
        self.tokens = []

    def begin(self, ids, count):
        turn = og.TurnOptions(self.request)
        turn.set_do_sample(False)
        turn.set_max_generated_tokens(count)
        self.request.begin_turn(np.array(ids, dtype=np.int32), turn)
        self.tokens = []


def run(engine, served, draft=None, close=False):
    """Runs until nothing is pending; returns how many engine runs it took. `draft(served)` proposes tokens; `close` gives
    a finished request's slot to those that wait."""
    buffer = engine.create_event_buffer(256)
    steps = 0
    while engine.has_pending_requests():
        for s in served if draft else []:
            draft(s)
        steps += 1
        if steps > 10000:
            raise RuntimeError("the engine makes no progress")
        for event in engine.run(buffer):
            flags = int(event.flags.value)
            owner = next(s for s in served if s.request is event.request or s.request == event.request)
            if flags & FAILED:
                raise RuntimeError(f"the engine failed a request: error code {event.error_code}")
            if flags & TOKEN:
                owner.tokens.append(int(event.token))
            if flags & TURN_FINISHED and close:
                owner.request.close()
    return steps


def ragged_batch(checks, case, package):
    engine = og.Engine(og.Model(str(package)))
    eos = eos_of(case)
    served = []
    for ids, expected in sequences(case):
        s = Served(engine, 512)
        s.begin(ids, len(expected))
        served.append((s, expected))
    run(engine, [s for s, _ in served], close=True)
    for s, expected in served:
        checks.equal(f"{case}: ragged batch, request of {len(expected)}", until_eos(s.tokens, eos), until_eos(expected, eos))


def several_turns(checks, package, ids, cut):
    """Two turns on one request continue as one conversation: the second sees the first's tokens."""
    engine = og.Engine(og.Model(str(package)))
    s = Served(engine, 512)
    s.begin(ids[:cut], 3)
    run(engine, [s])
    first = list(s.tokens)
    s.begin(ids[cut:], 4)
    run(engine, [s])
    second = list(s.tokens)
    fresh_engine = og.Engine(og.Model(str(package)))
    fresh = Served(fresh_engine, 512)
    # The last generated token of a turn has not been run yet when the turn ends; the next turn starts behind it.
    fresh.begin(ids[:cut] + first + ids[cut:], 4)
    run(fresh_engine, [fresh])
    checks.equal("second turn", second, fresh.tokens)


def drafts(checks, package, ids, plain):
    """Right, half right and wrong drafts all end in the plain greedy tokens; right ones in fewer steps."""
    steps = {}
    for kind in ("none", "right", "half", "wrong"):
        engine = og.Engine(og.Model(str(package)))
        s = Served(engine, 512)
        s.begin(ids, len(plain))

        def draft(served, kind=kind):
            at = len(served.tokens)
            if kind == "none" or at == 0 or at + 1 >= len(plain):
                return
            proposal = plain[at:at + 3]
            if kind == "half":
                proposal = proposal[:1] + [(t + 1) % 8 for t in proposal[1:]]
            if kind == "wrong":
                proposal = [(t + 1) % 8 for t in proposal]
            served.request.set_draft_tokens(np.array(proposal, dtype=np.int32))

        steps[kind] = run(engine, [s], draft)
        checks.equal(f"drafts {kind}", s.tokens, plain)
    checks.equal("right drafts save steps", steps["right"] < steps["none"], True)
    print(f"steps for {len(plain)} tokens: {steps}")


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            if "full_attention" not in (config_of(case).get("layer_types") or ["full_attention"]):
                continue  # genai's engine wants a paged_kv group
            package = export(GOLDENS / case, f"{folder}/{case}", "--target", "sluice", "--kv-blocks", "256", "--block-size", "16", "--max-batch", "4")
            ragged_batch(checks, case, package)
        ids, _ = sequences("dense35-base")[2]
        package = export(GOLDENS / "dense35-base", f"{folder}/capture", "--target", "sluice", "--kv-blocks", "256", "--block-size", "16",
                         "--max-batch", "4", "--state-update-capacity", "4")
        several_turns(checks, package, ids[:20], 9)
        engine = og.Engine(og.Model(str(package)))
        plain = Served(engine, 512)
        plain.begin(ids[:12], 14)
        run(engine, [plain])
        drafts(checks, package, ids[:12], plain.tokens)
    checks.finish()


if __name__ == "__main__":
    main()
