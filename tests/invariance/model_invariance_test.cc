// A request's logits and states are bit-identical whatever shares its batch, whatever the threads, the block size and the
// order of pages, and wherever its prefill was cut at multiples of the chunk.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "base/error.h"
#include "export/exporter.h"
#include "ops/register.h"
#include "package/manifest.h"
#include "tests/invariance/packed_server.h"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kChunk = 64;

OrtStatus* register_best(OrtSessionOptions* options, const OrtApiBase* base) {
  return ops::register_custom_ops(options, base, best_level());
}

// What a request ends with: everything that may not change.
struct Answer {
  std::vector<float> logits;
  std::vector<std::vector<std::byte>> states;
  std::vector<float> cache;
};

class ModelInvarianceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sluice-invariance-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  void TearDown() override {
    sessions_.clear();
    fs::remove_all(root_);
  }

  // The packed package of a checkpoint (a path under the project) at a block size, on a number of threads.
  const Session& session(const std::string& checkpoint, std::int64_t block_size, int threads) {
    const auto key = std::tuple(checkpoint, block_size, threads);
    if (const auto found = sessions_.find(key); found != sessions_.end()) return found->second;
    const fs::path output = root_ / (fs::path(checkpoint).filename().string() + "-" + std::to_string(block_size));
    if (!fs::exists(output)) {
      ExportRequest request;
      request.checkpoint = fs::path(SLUICE_SOURCE_DIR) / checkpoint;
      request.output = output;
      request.options.target = Target::sluice;
      request.options.block_size = block_size;
      request.operator_library = fs::path(SLUICE_BINARY_DIR) / "lib/libsluice_ops.so";
      request.sync = false;
      Progress silent;
      ExportJob(request).run(silent);
    }
    SessionOptions options;
    options.register_operators = register_best;
    options.threads = threads;
    return sessions_.emplace(key, Session(output, options)).first->second;
  }

  static std::vector<std::int64_t> tokens(std::int64_t count, std::int64_t vocab, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
    for (auto& id : ids) id = random() % static_cast<std::uint32_t>(vocab);
    return ids;
  }

  static Answer answer_of(const PackedServer& server, const ServedRequest& request) {
    return {request.logits, request.states, server.cache_of(request)};
  }

  static Answer solo(const Session& session, const std::vector<std::int64_t>& ids) {
    PackedServer server(session, 2 + static_cast<std::int64_t>(ids.size()) / session.manifest().block_size, 1);
    ServedRequest request = server.open(ids);
    server.step({{&request, static_cast<std::int64_t>(ids.size())}});
    return answer_of(server, request);
  }

  // Runs the requests by a random schedule: each step takes some of them, in any order, each by a random number of whole
  // chunks or by all that is left.
  static std::vector<Answer> scheduled(const Session& session, const std::vector<std::vector<std::int64_t>>& prompts,
                                       std::uint32_t seed) {
    std::mt19937 random(seed);
    std::int64_t blocks = 0;
    for (const auto& ids : prompts) blocks += 1 + static_cast<std::int64_t>(ids.size()) / session.manifest().block_size;
    PackedServer server(session, blocks + 3, seed);
    std::vector<ServedRequest> requests;
    for (const auto& ids : prompts) requests.push_back(server.open(ids));
    for (;;) {
      std::vector<Piece> pieces;
      for (ServedRequest& request : requests) {
        const std::int64_t left = static_cast<std::int64_t>(request.ids.size()) - request.done;
        if (left == 0 || (random() % 3 == 0 && requests.size() > 1)) continue;
        const std::int64_t chunks = left / kChunk;
        const bool all = chunks == 0 || random() % 4 == 0;
        pieces.push_back(
            {&request,
             all ? left : kChunk * (1 + static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(chunks)))});
      }
      std::shuffle(pieces.begin(), pieces.end(), random);
      if (!pieces.empty()) server.step(pieces);
      const bool done = std::all_of(requests.begin(), requests.end(), [](const ServedRequest& r) {
        return r.done == static_cast<std::int64_t>(r.ids.size());
      });
      if (done) break;
    }
    std::vector<Answer> answers;
    for (const ServedRequest& request : requests) answers.push_back(answer_of(server, request));
    return answers;
  }

  static void expect_equal_bits(const Answer& found, const Answer& expected, const std::string& what) {
    ASSERT_EQ(found.logits.size(), expected.logits.size()) << what;
    for (std::size_t i = 0; i < expected.logits.size(); ++i) {
      ASSERT_TRUE(std::isfinite(expected.logits[i]));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(found.logits[i]), std::bit_cast<std::uint32_t>(expected.logits[i]))
          << what << ": logit " << i << ": " << found.logits[i] << " and " << expected.logits[i];
    }
    for (std::size_t s = 0; s < expected.states.size(); ++s)
      ASSERT_EQ(found.states[s], expected.states[s]) << what << ": state " << s;
    ASSERT_EQ(found.cache.size(), expected.cache.size());
    ASSERT_EQ(std::memcmp(found.cache.data(), expected.cache.data(), expected.cache.size() * sizeof(float)), 0)
        << what << ": keys and values";
  }

  fs::path root_;
  std::map<std::tuple<std::string, std::int64_t, int>, Session> sessions_;
};

TEST_F(ModelInvarianceTest, ARaggedBatchEqualsItsSoloRuns) {
  for (const char* checkpoint : {"models/river-mini", "tests/data/goldens/dense35-base",
                                 "tests/data/goldens/moe35-base", "tests/data/goldens/next-base"}) {
    const Session& one = session(checkpoint, 16, 2);
    const std::int64_t vocab = one.manifest().model.vocab;
    const bool small = std::string(checkpoint) != "models/river-mini";
    const std::vector<std::int64_t> lengths =
        small ? std::vector<std::int64_t>{17, 65, 130} : std::vector<std::int64_t>{17, 512, 1993};
    std::vector<Answer> alone;
    PackedServer server(one, 200, 7);
    std::vector<ServedRequest> requests;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto ids = tokens(lengths[i], vocab, static_cast<std::uint32_t>(i + 1));
      alone.push_back(solo(one, ids));
      requests.push_back(server.open(ids));
    }
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < lengths.size(); ++i) pieces.push_back({&requests[i], lengths[i]});
    server.step(pieces);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      expect_equal_bits(answer_of(server, requests[i]), alone[i],
                        std::string(checkpoint) + ", " + std::to_string(lengths[i]) + " tokens");
    }
  }
}

TEST_F(ModelInvarianceTest, NoScheduleChangesABit) {
  for (const char* checkpoint : {"models/river-mini", "tests/data/goldens/dense35-asym", "tests/data/goldens/moe35-vl",
                                 "tests/data/goldens/next-mixed"}) {
    std::vector<std::vector<std::int64_t>> prompts;
    std::vector<Answer> alone;
    for (const std::int64_t length : {1, 17, 64, 130, 321, 200}) {
      prompts.push_back(
          tokens(length, session(checkpoint, 16, 1).manifest().model.vocab, static_cast<std::uint32_t>(length)));
      alone.push_back(solo(session(checkpoint, 16, 1), prompts.back()));
    }
    for (const std::int64_t block_size : {16, 24, 64}) {
      for (const int threads : {1, 2, 3}) {
        for (std::uint32_t seed = 0; seed < 3; ++seed) {
          const auto answers = scheduled(session(checkpoint, block_size, threads), prompts, seed * 31 + 5);
          for (std::size_t i = 0; i < prompts.size(); ++i) {
            expect_equal_bits(answers[i], alone[i],
                              std::string(checkpoint) + ", blocks of " + std::to_string(block_size) + ", " +
                                  std::to_string(threads) + " threads, seed " + std::to_string(seed) + ", request " +
                                  std::to_string(i));
          }
        }
      }
    }
  }
}

TEST_F(ModelInvarianceTest, OtherCutsAndDecodeStayCloseToOnePrefill) {
  const Session& one = session("models/river-mini", 16, 2);
  const auto ids = tokens(150, one.manifest().model.vocab, 3);
  const Answer whole = solo(one, ids);
  float scale = 0;
  for (const float v : whole.logits) scale = std::max(scale, std::fabs(v));
  for (const std::int64_t piece : {1, 7, 50}) {
    PackedServer server(one, 20, 2);
    ServedRequest request = server.open(ids);
    while (request.done < 150) server.step({{&request, std::min<std::int64_t>(piece, 150 - request.done)}});
    // Two ways to order the same sums: some thousand f32 operations deep, each off by half an ulp, 16 standard deviations.
    const float tolerance = 16 * std::sqrt(10000.0f) * 0x1p-24f * scale;
    for (std::size_t i = 0; i < whole.logits.size(); ++i) {
      ASSERT_NEAR(request.logits[i], whole.logits[i], tolerance) << "pieces of " << piece << ", logit " << i;
    }
  }
}

}  // namespace
}  // namespace sluice::testing
