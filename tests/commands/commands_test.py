"""Exit codes and streams of the program: 2 for wrong usage, 3 and one line for bad input, results on stdout alone."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = os.environ["SLUICE_BIN"]
GOLDEN = ROOT / "tests/data/goldens/dense35-base"


def run(*arguments, stdout=subprocess.PIPE):
    words = [SLUICE, *map(str, arguments)]
    return subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        for target in ("ort-cpu", "sluice"):
            result = run("export", GOLDEN, cls.root / target, "--target", target, "--no-sync", "--quiet")
            assert result.returncode == 0, result.stderr

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def refused(self, code, says, *arguments):
        with self.subTest(arguments=arguments):
            result = run(*arguments)
            self.assertEqual((result.returncode, result.stdout.strip()), (code, ""), result.stderr)
            self.assertIn(says, result.stderr)
            if code == 3:
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_wrong_usage_is_2_and_names_the_word(self):
        package, out = self.root / "ort-cpu", self.root / "out"
        self.refused(2, "subcommand is required")
        self.refused(2, "frobnicate", "frobnicate")
        choices = {"target": "ort-cpu", "layout": "packed", "recurrence": "gated-delta-net", "gates": "effective",
                   "dtype": "bf16", "weights": "source"}
        for option, known in choices.items():
            self.refused(2, known, "export", GOLDEN, out, f"--{option}", "magic")
        self.refused(2, "avx512", "generate", package, "--ids", "1", "--level", "magic")
        for text in ("", "0x1", "1.5", "a", "99999999999999999999"):
            for option in ("num-layers", "max-length", "block-size", "kv-blocks", "max-batch", "state-update-capacity"):
                self.refused(2, f"--{option}", "export", GOLDEN, out, f"--{option}", text)
            self.refused(2, "--ids", "generate", package, "--ids", text)
            self.refused(2, "--threads", "inspect", package, "--threads", text)
            self.refused(2, "--lengths", "verify", package, "--checkpoint", GOLDEN, "--lengths", text)
            self.refused(2, "--prompt", "bench", package, "--prompt", text)
        self.assertFalse(out.exists())

    def test_bad_input_is_3_and_one_line(self):
        package, packed = self.root / "ort-cpu", self.root / "sluice"
        self.refused(3, "empty path", "export", GOLDEN, "", "--quiet")
        self.refused(3, "empty path", "inspect", "")
        self.refused(3, "--operators sluice", "generate", package, "--ids", "1", "--level", "scalar")
        self.refused(3, "--target sluice", "generate", packed, "--ids", "1", "--operators", "stock")
        self.refused(3, "a folder", "generate", package, "--ids-file", self.root)
        self.refused(3, "no room", "generate", package, "--ids", ",".join(["1"] * 1024))
        expected = GOLDEN / "expected.safetensors"
        self.refused(3, "--lengths", "verify", package, "--expect", expected, "--lengths", "3")
        self.refused(3, "--ids", "verify", package, "--expect", expected, "--ids", "3")

    def test_every_report_is_json_on_stdout(self):
        package = self.root / "ort-cpu"
        for words in (["inspect", GOLDEN], ["inspect", package, "--check"], ["generate", package, "--ids", "1"],
                      ["export", GOLDEN, self.root / "out", "--dry-run"],
                      ["verify", package, "--expect", GOLDEN / "expected.safetensors"]):
            result = run(*words, "--json", "--quiet")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertTrue(json.loads(result.stdout))

    def test_bench_reports_the_level_that_ran(self):
        words = ["--prompt", "8", "--decode", "1", "--repeat", "1", "--bench-threads", "1", "--json", "--quiet"]
        for level in ("scalar", "avx2"):
            result = run("bench", self.root / "sluice", *words, "--level", level)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(json.loads(result.stdout)["level"], level)

    def test_a_result_that_cannot_be_written_is_an_error(self):
        for words in (["inspect", GOLDEN], ["inspect", GOLDEN, "--json"], ["--help"], ["--version"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = run(*words, stdout=full)
            self.assertEqual(result.returncode, 3)
            self.assertIn("standard output", result.stderr)

    def test_a_damaged_package_is_what_a_check_answers(self):
        package = self.root / "damaged"
        self.assertEqual(run("export", GOLDEN, package, "--no-sync", "--quiet").returncode, 0)
        graph = package / "model.onnx"
        graph.write_bytes(graph.read_bytes()[:-7])
        self.refused(3, "not an ONNX model", "inspect", package)
        for words in ([], ["--json"]):
            result = run("inspect", package, "--check", "--quiet", *words)
            self.assertEqual((result.returncode, result.stderr), (1, ""))
            self.assertIn("the manifest says", result.stdout)
            self.assertIn("not an ONNX model", result.stdout)
        self.assertFalse(json.loads(result.stdout)["check"]["good"])
        graph.unlink()
        graph.mkdir()
        self.assertEqual(run("inspect", package, "--check", "--quiet").returncode, 1)


if __name__ == "__main__":
    unittest.main()
