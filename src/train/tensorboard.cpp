#include "train/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>

#include "base/file.h"

namespace hyperparallel::train {
namespace {

static_assert(std::endian::native == std::endian::little, "frames and protobuf numbers are written as they lie in memory");

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}();

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// Protobuf fields. A tag is field number * 8 + wire type: 0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string varint_field(int number, uint64_t value) {
  return varint(number * 8 + 0) + varint(value);
}
std::string double_field(int number, double value) {
  return varint(number * 8 + 1) + raw(value);
}
std::string bytes_field(int number, std::string_view bytes) {
  return varint(number * 8 + 2) + varint(bytes.size()) + std::string(bytes);
}
std::string float_field(int number, float value) {
  return varint(number * 8 + 5) + raw(value);
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string frame(const std::string& event) {
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  return length + raw(masked_crc32c(length)) + event + raw(masked_crc32c(event));
}

std::string event_at(int64_t step, const std::string& content) {
  return double_field(1, wall_time()) + varint_field(2, static_cast<uint64_t>(step)) + content;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

TensorBoardFile::TensorBoardFile(const std::filesystem::path& folder, int64_t last_step) {
  file::create_folders(folder);
  // TensorBoard reads files of one folder in the order of their names.
  path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<int64_t>(wall_time()), host_name(), getpid());
  const std::string version = frame(double_field(1, wall_time()) + bytes_field(3, "brain.Event:2"));
  constexpr uint64_t kSessionStart = 1;  // what earlier files hold from this step on is forgotten
  file::append(path_, version + frame(event_at(last_step + 1, bytes_field(7, varint_field(1, kSessionStart)))));
}

void TensorBoardFile::write(const StepMetrics& metrics) {
  std::string summary;
  for (const auto& [name, value] : dashboard_scalars(metrics)) {
    summary += bytes_field(1, bytes_field(1, name) + float_field(2, static_cast<float>(value)));
  }
  file::append(path_, frame(event_at(metrics.step, bytes_field(5, summary))));
}

}  // namespace hyperparallel::train
