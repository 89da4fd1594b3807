"""The lints find what they are for: each is fed a sample that is wrong and one that is right."""
import pathlib
import unittest

import floors
import sizes
import symbols
import text
import tree

FLOORS = {"base": 0, "onnx": 1, "graph": 4, "session": 2, "apps": 7}
DEPENDS = {"base": [], "onnx": ["base"], "graph": ["onnx"], "session": [], "apps": ["graph", "session"]}


def include_complaints(path, line):
    return list(floors.complaints(pathlib.Path(path), line + "\n", FLOORS, DEPENDS))


class Floors(unittest.TestCase):
    def test_upward_and_undeclared_includes_are_found(self):
        self.assertIn("floor 1, graph on floor 4", include_complaints("src/onnx/model.cc", '#include "graph/graph.h"')[0])
        self.assertIn("does not declare", include_complaints("src/session/session.cc", '#include "base/error.h"')[0])
        self.assertIn("run half", include_complaints("src/session/session.cc", '#include "onnx/model.h"')[0])
        self.assertIn("relative", include_complaints("src/apps/main.cc", '#include "../base/error.h"')[0])
        self.assertEqual([], include_complaints("src/graph/graph.cc", '#include "base/error.h"'))
        self.assertIn("only tests", include_complaints("src/graph/graph.cc", '#include "tests/support/golden.h"')[0])
        self.assertEqual([], include_complaints("src/graph/graph_test.cc", '#include "tests/support/golden.h"'))

    def test_third_parties_stay_in_their_places(self):
        self.assertEqual(1, len(include_complaints("src/graph/graph.cc", "#include <onnxruntime_c_api.h>")))
        self.assertEqual(1, len(include_complaints("src/base/hash.cc", "#include <nlohmann/json.hpp>")))
        self.assertEqual(1, len(include_complaints("src/graph/graph.cc", "#include <immintrin.h>")))
        self.assertEqual([], include_complaints("src/session/ort.h", "#include <onnxruntime_c_api.h>"))


SOURCE = '''
namespace a {
// not { a } function( {
struct Plain { int x = 1; std::vector<int> v{1, 2}; };
class Thing {
 public:
  Thing(int a, std::map<int, int> b) : a_{a}, b_(std::move(b)) {
    if (a) { call("{"); }
  }
  int get() const noexcept { return a_; }
 private:
  int a_;
};
constexpr int table[] = {1, 2, 3};
template <typename T, int N = (3 > 2)>
T long_one(const std::function<void(int, int)>& f, T b, int c, int d, int e, int g, int h) {

  for (;;) { break; }
  const auto inner = [&](int q) { return q; };
  return b;
}
auto late(int a) -> std::vector<int> { return {a, 1'000}; }
bool operator==(const Thing& a, const Thing& b) { return false; }
}  // namespace a
TEST(Suite, Name) {
  EXPECT_EQ(1, 1);
}
'''


class Sizes(unittest.TestCase):
    def test_functions_are_found_with_their_lines_and_parameters(self):
        found = [(last - first + 1, sizes.count_parameters(head)) for first, last, head in sizes.functions(SOURCE)]
        self.assertEqual([(3, 2), (1, 0), (7, 7), (1, 1), (1, 2), (3, 2)], found)

    def test_the_percentile_is_the_smallest_that_covers_the_share(self):
        self.assertEqual(95, sizes.percentile(list(range(1, 101)), 95))
        self.assertEqual(3, sizes.percentile([3], 95))


class Text(unittest.TestCase):
    def test_forbidden_words_are_found(self):
        for line in ("see py" "pi.org", "cd /wo" "rk/main", "// TO" "DO later", "fixes issue " "#12", "blank "):
            self.assertEqual(1, len(list(text.complaints(pathlib.Path("README.md"), line))), line)
        self.assertEqual([], list(text.complaints(pathlib.Path("README.md"), "the work/home of a todo list")))

    def test_dead_links_are_found(self):
        path = pathlib.Path("README.md")
        self.assertEqual(1, len(list(text.complaints(path, "[a](no/such/file.md)"))))
        self.assertEqual([], list(text.complaints(path, "[a](README.md#top) [b](https://example.org) [c](#d)")))

    def test_libraries_neither_print_nor_read_the_environment(self):
        path = pathlib.Path("src/base/x.cc")
        for line in ("std::cerr << 1;", "fmt::print(x);", "printf(x);", 'getenv("A");', "strcpy(a, b);"):
            self.assertEqual(1, len(list(text.complaints(path, line))), line)
        for line in ('fail("std::cerr");', "snprintf(a, 1, b);", "// printf("):
            self.assertEqual([], list(text.complaints(path, line)), line)
        self.assertEqual([], list(text.complaints(pathlib.Path("src/apps/main.cc"), "fmt::print(x);")))


class Symbols(unittest.TestCase):
    def test_weak_symbols_outside_their_level_are_found(self):
        listing = "0000 W _ZNSt6vectorIiE4sizeEv\n0000 W _ZN6sluice4avx23fooEv\n0000 T _ZN6sluice3barEv\n0000 V _ZTISt9exception"
        self.assertEqual(2, len(list(symbols.weak_symbols("avx2", listing))))

    def test_a_library_with_surplus_exports_needs_or_versions_is_found(self):
        good = ({"RegisterCustomOps"}, {"libc.so.6"}, {(2, 14), (2, 4)})
        self.assertEqual([], list(symbols.library_complaints(*good)))
        self.assertEqual(1, len(list(symbols.library_complaints(good[0] | {"foo"}, good[1], good[2]))))
        self.assertEqual(1, len(list(symbols.library_complaints(good[0], good[1] | {"libstdc++.so.6"}, good[2]))))
        self.assertEqual(1, len(list(symbols.library_complaints(good[0], good[1], good[2] | {(2, 38)}))))


class Tree(unittest.TestCase):
    def test_literals_and_comments_are_blanked_with_lines_kept(self):
        stripped = tree.strip_code('a("{\\"}"); // {\n/* {\n */ b(\'{\'); c(R"x({"})x"); d(1\'000);')
        self.assertNotIn("{", stripped)
        self.assertEqual(2, stripped.count("\n"))
        self.assertIn("d(1'000)", stripped)


if __name__ == "__main__":
    unittest.main()
