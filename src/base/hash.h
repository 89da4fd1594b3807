// XXH3 of a byte stream, 64 bits, as the manifest records it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace sluice {

class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;

  void update(std::span<const std::byte> bytes) noexcept;
  std::uint64_t digest() const noexcept;
  std::string hex() const;  // 16 lower-case digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
