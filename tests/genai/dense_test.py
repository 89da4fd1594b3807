"""onnxruntime-genai loads the dense package of every golden checkpoint unmodified, with both recurrences, and generates
the tokens that transformers generates; Python's onnx checker accepts the model."""
import tempfile

import numpy as np
import onnx
import onnxruntime_genai as og

from common import GOLDENS, Checks, cases, config_of, export, sequences


def greedy(model, ids, count, eos):
    """Up to `count` greedy tokens, ending before an end-of-sequence id."""
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + count + 1, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array(ids, dtype=np.int32))
    out = []
    while len(out) < count and not generator.is_done():
        generator.generate_next_token()
        out.append(int(generator.get_next_tokens()[0]))
    return until_eos(out, eos)


def until_eos(ids, eos):
    for i, token in enumerate(ids):
        if token in eos:
            return ids[:i]
    return ids


def eos_of(case):
    value = config_of(case).get("eos_token_id")
    return set(value if isinstance(value, list) else [value])


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            for recurrence in ("linear-attention", "gated-delta-net"):
                package = export(GOLDENS / case, f"{folder}/{case}-{recurrence}", "--recurrence", recurrence)
                onnx.checker.check_model(str(package / "model.onnx"))
                model = og.Model(str(package))
                eos = eos_of(case)
                for ids, expected in sequences(case):
                    found = greedy(model, ids, len(expected), eos)
                    checks.equal(f"{case} {recurrence}, prompt of {len(ids)}", found, until_eos(expected, eos))
        # Known traps: two ids 0 in a row, and a prompt that holds the pad id, change nothing.
        package = export(GOLDENS / "dense35-base", f"{folder}/traps")
        model = og.Model(str(package))
        other = og.Model(str(export(GOLDENS / "dense35-base", f"{folder}/traps-gdn", "--recurrence", "gated-delta-net")))
        pad = config_of("dense35-base").get("pad_token_id") or 1
        for prompt in ([0, 0, 5, 9], [3, pad, 5, pad, 7]):
            checks.equal(f"prompt {prompt}", greedy(model, prompt, 4, set()), greedy(other, prompt, 4, set()))
    checks.finish()


if __name__ == "__main__":
    main()
