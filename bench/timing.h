// Shortest times of bodies that take turns, so that a busy machine disturbs all of them alike.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace sluice::bench {

struct Timed {
  std::string name;
  std::function<void()> run;
  double seconds = 1e30;  // the shortest run so far
};

inline double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Longer than the threads of another pool stay awake after their last call.
inline constexpr double kTurn = 5e-3;  // seconds

// Gives every body its turn, again and again, until `budget` seconds are spent and each has had at least `rounds`.
inline void time_in_turns(std::vector<Timed>& bodies, double budget, int rounds = 5) {
  double spent = 0;
  for (int round = 0; round < rounds || spent < budget; ++round) {
    for (Timed& body : bodies) {
      double turn = 0;
      while (turn < kTurn) {
        const double seconds = seconds_of(body.run);
        body.seconds = std::min(body.seconds, seconds);
        turn += seconds;
      }
      spent += turn;
    }
  }
}

}  // namespace sluice::bench
