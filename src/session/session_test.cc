// Sessions, steps and sequences over the hand-sized graphs of tests/data/session, whose operators are the real ones.
#include "session/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "session/sequence.h"
#include "session/step.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVocab = 13, kHidden = 16, kHeads = 2, kDim = 8, kConv = 3;
// Sums of at most 64 products of magnitude under 4, in another order: 64 * 4 * 2^-24 twice over, times the depth of the
// graph.
constexpr float kTolerance = 1e-4f;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "sluice_session_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Extent number(std::int64_t n) { return {n, ""}; }
Extent symbol(const char* name) { return {-1, name}; }

void add_fixed_states(GraphInfo& graph) {
  graph.states.push_back({StateKind::conv,
                          0,
                          DType::f32,
                          {symbol("batch_size"), number(kHidden), number(kConv)},
                          "past_key_values.0.conv_state",
                          "present.0.conv_state"});
  graph.states.push_back({StateKind::recurrent,
                          0,
                          DType::f32,
                          {symbol("batch_size"), number(kHeads), number(kDim), number(kDim)},
                          "past_key_values.0.recurrent_state",
                          "present.0.recurrent_state"});
}

Manifest base_manifest() {
  Manifest m;
  m.model.vocab = kVocab;
  m.model.context_length = 4096;
  return m;
}

Manifest dense_manifest() {
  Manifest m = base_manifest();
  GraphInfo g{"decoder", "model.onnx", {}, {}, {}};
  g.inputs = {{"input_ids", DType::i64, {symbol("batch_size"), symbol("sequence_length")}},
              {"attention_mask", DType::i64, {symbol("batch_size"), symbol("total_sequence_length")}},
              {"position_ids", DType::i64, {symbol("batch_size"), symbol("sequence_length")}}};
  g.outputs = {{"logits", DType::f32, {symbol("batch_size"), symbol("sequence_length"), number(kVocab)}}};
  add_fixed_states(g);
  for (const std::string part : {"key", "value"}) {
    g.states.push_back({StateKind::growing_kv,
                        1,
                        DType::f32,
                        {symbol("batch_size"), number(kHeads), symbol("past_sequence_length"), number(kDim)},
                        "past_key_values.1." + part,
                        "present.1." + part});
  }
  m.graphs = {g};
  return m;
}

Manifest packed_manifest() {
  Manifest m = base_manifest();
  m.layout = Layout::packed;
  m.recurrence = Recurrence::gated_delta_net;
  m.prune_lm_head = true;
  GraphInfo g{"decoder", "model.onnx", {}, {}, {}};
  g.inputs = {{"input_ids", DType::i64, {symbol("num_tokens")}},
              {"position_ids", DType::i64, {symbol("num_tokens")}},
              {"cumulative_sequence_lengths", DType::i32, {symbol("batch_size + 1")}},
              {"logits_indices", DType::i32, {symbol("num_logits")}}};
  g.outputs = {{"logits", DType::f32, {symbol("num_logits"), number(kVocab)}}};
  add_fixed_states(g);
  m.graphs = {g};
  return m;
}

// A package in a folder of its own: a graph of tests/data/session and a manifest.
struct Package {
  Package(const char* graph, const Manifest& manifest) {
    fs::copy_file(fs::path(SLUICE_SOURCE_DIR) / "tests/data/session" / graph, folder.path() / "model.onnx");
    std::ofstream(folder.path() / kManifestFile) << to_json(manifest).dump();
  }
  Session open(SessionOptions options = {.threads = 1}) const { return Session(folder.path(), options); }
  TemporaryFolder folder;
};

std::vector<std::int64_t> some_tokens(std::size_t count) {
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::int64_t>((7 * i + i * i / 3) % kVocab));
  return tokens;
}

std::vector<std::int64_t> every_row(std::size_t count) {
  std::vector<std::int64_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

using Rows = std::vector<std::vector<float>>;

// Logits of every token, appended in parts of the sizes given.
Rows logits_of(Sequence& sequence, std::span<const std::int64_t> tokens, std::span<const std::size_t> parts) {
  Rows all;
  std::size_t begin = 0;
  for (const std::size_t size : parts) {
    sequence.append(tokens.subspan(begin, size), every_row(size), [&](std::int64_t row, std::span<const float> logits) {
      EXPECT_EQ(begin + static_cast<std::size_t>(row), all.size());
      all.emplace_back(logits.begin(), logits.end());
    });
    begin += size;
  }
  EXPECT_EQ(begin, tokens.size());
  return all;
}

void expect_near(const Rows& a, const Rows& b, float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].size(), b[i].size());
    for (std::size_t v = 0; v < a[i].size(); ++v) {
      ASSERT_LE(std::abs(a[i][v] - b[i][v]), tolerance)
          << "token " << i << ", logit " << v << ": " << a[i][v] << " and " << b[i][v];
    }
  }
}

void expect_states_near(const Sequence& a, const Sequence& b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const Sequence::State x = a.state(i), y = b.state(i);
    ASSERT_EQ(x.shape, y.shape) << "state " << i;
    expect_near({x.values}, {y.values}, kTolerance);
  }
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "no error";
}

#define EXPECT_MESSAGE(action, part)                                                               \
  do {                                                                                             \
    const std::string found = message_of([&] { action; });                                         \
    EXPECT_NE(found.find(part), std::string::npos) << "expected '" << (part) << "' in: " << found; \
  } while (false)

class EveryLayout : public ::testing::TestWithParam<const char*> {
 protected:
  EveryLayout()
      : package(GetParam() == std::string("dense") ? Package("dense.onnx", dense_manifest())
                                                   : Package("packed.onnx", packed_manifest())) {}
  Package package;
};
INSTANTIATE_TEST_SUITE_P(Sequence, EveryLayout, ::testing::Values("dense", "packed"),
                         [](const auto& layout) { return layout.param; });

TEST_P(EveryLayout, CutsOfAPrefillGiveTheSameLogitsAndStates) {
  const Session session = package.open();
  const std::vector<std::int64_t> tokens = some_tokens(65);
  Sequence whole(session), cut(session), single(session);
  const Rows expected = logits_of(whole, tokens, std::vector<std::size_t>{65});
  expect_near(expected, logits_of(cut, tokens, std::vector<std::size_t>{1, 2, 30, 1, 31}), kTolerance);
  expect_near(expected, logits_of(single, tokens, std::vector<std::size_t>(65, 1)), kTolerance);
  const std::size_t states = session.graph().states.size();
  expect_states_near(whole, cut, states);
  expect_states_near(whole, single, states);
  EXPECT_EQ(whole.length(), 65);
}

TEST_P(EveryLayout, SmallPiecesGiveTheRowsAskedForInOrder) {
  const Session session = package.open();
  const std::vector<std::int64_t> tokens = some_tokens(40);
  Sequence whole(session), pieces(session, {.max_piece = 7});
  const Rows expected = logits_of(whole, tokens, std::vector<std::size_t>{40});
  const std::vector<std::int64_t> rows = {0, 6, 7, 8, 20, 39};
  std::vector<std::int64_t> seen;
  pieces.append(tokens, rows, [&](std::int64_t row, std::span<const float> logits) {
    seen.push_back(row);
    expect_near({expected[static_cast<std::size_t>(row)]}, {{logits.begin(), logits.end()}}, kTolerance);
  });
  EXPECT_EQ(seen, rows);
  expect_states_near(whole, pieces, session.graph().states.size());
}

TEST_P(EveryLayout, AResetSequenceRepeatsItselfBitForBit) {
  const Session session = package.open();
  const std::vector<std::int64_t> tokens = some_tokens(33);
  Sequence sequence(session);
  const std::vector<float> first = sequence.append(tokens);
  sequence.append(some_tokens(9));
  sequence.reset();
  EXPECT_EQ(sequence.length(), 0);
  EXPECT_EQ(first, sequence.append(tokens));
}

TEST_P(EveryLayout, TwoSequencesOnOneSessionDoNotTouchEachOther) {
  const Session session = package.open();
  const std::vector<std::int64_t> a = some_tokens(20), b = {3, 1, 4, 1, 5, 9, 2, 6};
  Sequence alone(session), first(session), second(session);
  const Rows expected = logits_of(alone, a, std::vector<std::size_t>{10, 10});
  Rows found = logits_of(first, std::span(a).first(10), std::vector<std::size_t>{10});
  second.append(b);
  for (const auto& row : logits_of(first, std::span(a).last(10), std::vector<std::size_t>{10})) found.push_back(row);
  EXPECT_EQ(expected, found);
}

TEST_P(EveryLayout, WrongTokensAndTooLongSequencesAreRefusedByName) {
  const Session session = package.open();
  Sequence sequence(session);
  EXPECT_MESSAGE(sequence.append(std::vector<std::int64_t>{3, -1}),
                 "token 1 has id -1; this package's vocabulary has ids 0 to 12");
  EXPECT_MESSAGE(sequence.append(std::vector<std::int64_t>{13}), "token 0 has id 13");
  EXPECT_MESSAGE(sequence.append(some_tokens(4097)),
                 "a sequence of 4097 tokens does not fit this package, which was exported for 4096");
}

TEST(DenseSequence, AnswersOutlastTheGrowthOfTheCache) {
  const Package package("dense.onnx", dense_manifest());
  const Session session = package.open();
  const std::vector<std::int64_t> tokens = some_tokens(600);
  Sequence roomy(session, {.capacity = 600}), growing(session, {.capacity = 2});
  const std::size_t before = growing.state_bytes();
  const std::vector<std::size_t> parts = {1, 1, 1, 297, 300};
  expect_near(logits_of(roomy, tokens, parts), logits_of(growing, tokens, parts), kTolerance);
  expect_states_near(roomy, growing, session.graph().states.size());
  EXPECT_GT(growing.state_bytes(), before);
  EXPECT_EQ(growing.state(2).shape, (Shape{kHeads, 600, kDim}));
}

// One step of `tokens` with states apart: what comes in is not written, what goes out is new memory.
struct Apart {
  std::vector<float> conv, recurrent, key, value;
};

std::vector<float> step_apart(const Session& session, const Apart& in, std::int64_t past,
                              std::span<const std::int64_t> tokens, Apart& out) {
  const std::int64_t count = static_cast<std::int64_t>(tokens.size()), total = past + count;
  const auto bind = [](const std::vector<float>& values, Shape shape) {
    return TensorRef{DType::f32, std::move(shape), const_cast<float*>(values.data()), values.size() * sizeof(float)};
  };
  out = {in.conv, in.recurrent, std::vector<float>(static_cast<std::size_t>(kHeads * total * kDim)), {}};
  out.value = out.key;
  const Shape fixed_conv = {1, kHidden, kConv}, fixed_recurrent = {1, kHeads, kDim, kDim};
  const StateBinding states[] = {{bind(in.conv, fixed_conv), bind(out.conv, fixed_conv)},
                                 {bind(in.recurrent, fixed_recurrent), bind(out.recurrent, fixed_recurrent)},
                                 {bind(in.key, {1, kHeads, past, kDim}), bind(out.key, {1, kHeads, total, kDim})},
                                 {bind(in.value, {1, kHeads, past, kDim}), bind(out.value, {1, kHeads, total, kDim})}};
  std::vector<float> logits(static_cast<std::size_t>(count * kVocab));
  run_step(session,
           DenseStep{
               .past_length = past, .input_ids = tokens, .states = states, .logits = bind(logits, {1, count, kVocab})});
  return logits;
}

TEST(DenseStep, StatesApartGiveTheBitsOfStatesInPlaceAndLeaveTheOldOnesAlone) {
  const Package package("dense.onnx", dense_manifest());
  const Session session = package.open();
  const std::vector<std::int64_t> tokens = some_tokens(12);
  Sequence in_place(session, {.capacity = 12});
  const Rows expected = logits_of(in_place, tokens, std::vector<std::size_t>{11, 1});
  const Apart start{std::vector<float>(kHidden * kConv), std::vector<float>(kHeads * kDim * kDim), {}, {}};
  Apart middle, end;
  step_apart(session, start, 0, std::span(tokens).first(11), middle);
  const Apart kept = middle;
  const std::vector<float> last = step_apart(session, middle, 11, std::span(tokens).last(1), end);
  expect_near({expected.back()}, {last}, kTolerance);
  EXPECT_EQ(kept.conv, middle.conv);
  EXPECT_EQ(kept.recurrent, middle.recurrent);
  EXPECT_EQ(in_place.state(2).values, end.key);
}

TEST(DenseStep, ABatchOfEqualLengthsGivesEachRowWhatItGetsAlone) {
  const Package package("dense.onnx", dense_manifest());
  const Session session = package.open();
  constexpr std::int64_t kCapacity = 16;
  const std::vector<std::int64_t> a = some_tokens(12), b = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 12, 11};
  Sequence alone_a(session), alone_b(session);
  const std::vector<std::size_t> parts = {9, 1, 1, 1};
  const Rows expected_a = logits_of(alone_a, a, parts), expected_b = logits_of(alone_b, b, parts);
  std::vector<std::vector<float>> memory;
  std::vector<StateBinding> states;
  for (const StateInfo& state : session.graph().states) {
    const Shape shape = state_shape(state, {.batch = 2, .tokens = kCapacity});
    memory.emplace_back(static_cast<std::size_t>(element_count(shape).value()));
    const TensorRef tensor{DType::f32, shape, memory.back().data(), memory.back().size() * sizeof(float)};
    states.push_back({tensor, tensor});
  }
  std::int64_t past = 0;
  for (const std::size_t size : parts) {
    const std::int64_t count = static_cast<std::int64_t>(size);
    std::vector<std::int64_t> ids(a.begin() + past, a.begin() + past + count);
    ids.insert(ids.end(), b.begin() + past, b.begin() + past + count);
    std::vector<float> logits(2 * size * kVocab);
    run_step(session,
             DenseStep{.batch = 2,
                       .past_length = past,
                       .input_ids = ids,
                       .states = states,
                       .logits = {DType::f32, {2, count, kVocab}, logits.data(), logits.size() * sizeof(float)}});
    for (std::size_t t = 0; t < size; ++t) {
      const auto row = [&](std::size_t index) {
        const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(index * kVocab);
        return std::vector<float>(begin, begin + kVocab);
      };
      expect_near({expected_a[static_cast<std::size_t>(past) + t]}, {row(t)}, kTolerance);
      expect_near({expected_b[static_cast<std::size_t>(past) + t]}, {row(size + t)}, kTolerance);
    }
    past += count;
  }
}

TEST(PackedStep, ARaggedBatchGivesEachRowWhatItGetsAlone) {
  const Package package("packed.onnx", packed_manifest());
  const Session session = package.open();
  const std::vector<std::vector<std::int64_t>> rows = {some_tokens(5), {}, some_tokens(17), {4}};
  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> offsets = {0}, last_tokens;
  Rows expected;
  for (const auto& row : rows) {
    tokens.insert(tokens.end(), row.begin(), row.end());
    offsets.push_back(static_cast<std::int32_t>(tokens.size()));
    if (row.empty()) continue;
    last_tokens.push_back(offsets.back() - 1);
    Sequence alone(session);
    expected.push_back(alone.append(row));
  }
  std::vector<float> conv(4 * kHidden * kConv), recurrent(4 * kHeads * kDim * kDim), logits(3 * kVocab);
  const auto bind = [](std::vector<float>& v, Shape shape) {
    return TensorRef{DType::f32, std::move(shape), v.data(), v.size() * sizeof(float)};
  };
  const TensorRef states[] = {bind(conv, {4, kHidden, kConv}), bind(recurrent, {4, kHeads, kDim, kDim})};
  const StateBinding bindings[] = {{states[0], states[0]}, {states[1], states[1]}};
  const std::vector<std::int32_t> past(4, 0);
  run_step(session, PackedStep{.input_ids = tokens,
                               .cu_seqlens = offsets,
                               .past_lengths = past,
                               .logits_indices = last_tokens,
                               .states = bindings,
                               .logits = bind(logits, {3, kVocab})});
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i * kVocab);
    expect_near({expected[i]}, {{begin, begin + kVocab}}, kTolerance);
  }
}

TEST(Session, ThreadsAndOptimisationDoNotChangeTheAnswer) {
  const Package package("dense.onnx", dense_manifest());
  const std::vector<std::int64_t> tokens = some_tokens(50);
  const Session plain = package.open();
  Sequence reference(plain);
  const Rows expected = logits_of(reference, tokens, std::vector<std::size_t>{49, 1});
  for (const SessionOptions& options :
       {SessionOptions{.threads = 2}, SessionOptions{.threads = 1, .optimization = Optimization::none},
        SessionOptions{.threads = 2, .prepack = false, .spin = true}}) {
    const Session session = package.open(options);
    Sequence sequence(session);
    expect_near(expected, logits_of(sequence, tokens, std::vector<std::size_t>{49, 1}), kTolerance);
  }
}

TEST(Session, AManifestThatDisagreesWithTheGraphIsRefused) {
  Manifest renamed = dense_manifest();
  renamed.graphs[0].states[0].output = "present.0.conv";
  EXPECT_MESSAGE(Package("dense.onnx", renamed).open(),
                 "output 'present.0.conv_state' of the graph is not in sluice.json");
  Manifest retyped = dense_manifest();
  retyped.graphs[0].states[1].dtype = DType::f16;
  EXPECT_MESSAGE(Package("dense.onnx", retyped).open(),
                 "'past_key_values.0.recurrent_state' is f32 [-1, 2, 8, 8] in the graph, f16 [batch_size, 2, 8, 8]");
  Manifest reshaped = dense_manifest();
  reshaped.graphs[0].outputs[0].shape[2].value = kVocab + 1;
  EXPECT_MESSAGE(Package("dense.onnx", reshaped).open(), "output 'logits' is f32 [-1, -1, 13] in the graph");
  Manifest surplus = dense_manifest();
  surplus.graphs[0].inputs.push_back({"more", DType::i64, {}});
  EXPECT_MESSAGE(Package("dense.onnx", surplus).open(), "sluice.json names 8 inputs, the graph has 7");
}

TEST(Session, FoldersWithoutAWholePackageAreRefusedByName) {
  const TemporaryFolder empty;
  EXPECT_MESSAGE(Session(empty.path(), {}), "no sluice.json in it");
  const Package package("dense.onnx", dense_manifest());
  EXPECT_MESSAGE(package.open({.role = "mtp"}), "no graph with role 'mtp'; found decoder");
  fs::resize_file(package.folder.path() / "model.onnx", 100);
  EXPECT_MESSAGE(package.open(), "model.onnx: ONNX Runtime:");
  fs::remove(package.folder.path() / "model.onnx");
  EXPECT_MESSAGE(package.open(), "model.onnx: no such file, though sluice.json names it");
}

TEST(Session, BindingsThatDoNotFitAreRefusedBeforeTheGraphRuns) {
  const Package package("packed.onnx", packed_manifest());
  const Session session = package.open();
  std::int64_t id = 1;
  const TensorRef ids{DType::i64, {1}, &id, sizeof id};
  const PortBinding unknown[] = {{"tokens", ids}};
  EXPECT_MESSAGE(session.run(unknown, {}), "the graph has no 'tokens'");
  const PortBinding mistyped[] = {{"cumulative_sequence_lengths", ids}};
  EXPECT_MESSAGE(session.run(mistyped, {}), "'cumulative_sequence_lengths' is i32 [batch_size + 1], given i64 [1]");
  const PortBinding small[] = {{"input_ids", {DType::i64, {2}, &id, sizeof id}}};
  EXPECT_MESSAGE(session.run(small, {}), "'input_ids' given as [2] does not fit its 8 bytes");
  const PortBinding twice[] = {{"input_ids", ids}, {"input_ids", ids}};
  EXPECT_MESSAGE(session.run(twice, {}), "input 'input_ids' is given twice");
  const PortBinding incomplete[] = {{"input_ids", ids}};
  EXPECT_MESSAGE(session.run(incomplete, {}), "the graph wants an input 'cumulative_sequence_lengths', which");
}

OrtStatus* register_nothing(OrtSessionOptions* options, const OrtApiBase* base) {
  EXPECT_NE(options, nullptr);
  EXPECT_NE(base, nullptr);
  return nullptr;
}

TEST(Session, ReportsTheRuntimeItRunsWith) {
  EXPECT_EQ(runtime_version(), "1.32.0");
  const Package package("dense.onnx", dense_manifest());
  EXPECT_NO_THROW(package.open({.register_operators = register_nothing, .threads = 1}));
}

TEST(Sequence, AManifestWhoseVocabularyIsNotTheGraphsIsRefused) {
  for (const std::int64_t vocab : {std::int64_t{0}, std::int64_t{-1}, kVocab + 1, std::int64_t{1} << 62}) {
    Manifest manifest = dense_manifest();
    manifest.model.vocab = vocab;
    const Package package("dense.onnx", manifest);
    const Session session = package.open();
    EXPECT_MESSAGE(Sequence{session}, fmt::format("sluice.json: model: vocab is {}", vocab));
  }
}

TEST(StateShape, SymbolsAreReplacedByKindAndOthersRefused) {
  const StateInfo paged{StateKind::paged_kv,
                        0,
                        DType::f16,
                        {symbol("num_blocks"), symbol("block_size"), number(2), number(4)},
                        "k",
                        "k2"};
  EXPECT_EQ(state_shape(paged, {.batch = 3, .tokens = 5, .blocks = 7, .block_size = 16}), (Shape{7, 16, 2, 4}));
  EXPECT_MESSAGE(state_shape(paged, {.blocks = 7}), "state 'k': extent 1 is the symbol 'block_size'");
  const StateInfo growing{StateKind::growing_kv,
                          0,
                          DType::f32,
                          {symbol("batch_size"), number(2), symbol("past_sequence_length"), number(4)},
                          "k",
                          "k2"};
  EXPECT_EQ(state_shape(growing, {.batch = 3, .tokens = 5}), (Shape{3, 2, 5, 4}));
}

}  // namespace
}  // namespace sluice
