#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/box.h"
#include "base/error.h"
#include "base/file.h"

namespace hyperparallel::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are copied as they lie in the file");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct Dtype {
  const char* name;
  int64_t bits;
  std::optional<at::ScalarType> scalar_type;
};

constexpr Dtype kDtypes[] = {
    {"F64", 64, at::kDouble}, {"F32", 32, at::kFloat}, {"F16", 16, at::kHalf},   {"BF16", 16, at::kBFloat16},
    {"I64", 64, at::kLong},   {"I32", 32, at::kInt},   {"I16", 16, at::kShort},  {"I8", 8, at::kChar},
    {"U8", 8, at::kByte},     {"BOOL", 8, at::kBool},  {"U64", 64, at::kUInt64}, {"U32", 32, at::kUInt32},
    {"U16", 16, at::kUInt16}, {"C64", 64, {}},         {"F8_E4M3", 8, {}},       {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},       {"F6_E2M3", 6, {}},      {"F6_E3M2", 6, {}},       {"F4", 4, {}},
};

const Dtype* find_dtype(const std::string& name) {
  auto found = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Dtype& dtype) { return name == dtype.name; });
  return found == std::end(kDtypes) ? nullptr : found;
}

// Parses JSON and refuses an object that has a key twice (the library would keep the last one).
json parse_unique(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  auto check = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw CheckpointError("{}: header has `{}` twice", file, value.get<std::string>());
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    throw CheckpointError("{}: header is not valid JSON: {}", file, error.what());
  }
}

int64_t unsigned_integer(const json& value, const std::string& file, const std::string& tensor, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    throw CheckpointError("{}: tensor `{}`: {} holds {}; non-negative integers are accepted", file, tensor, what,
                          value.dump(-1, ' ', false, json::error_handler_t::replace));
  return value.get<int64_t>();
}

std::map<std::string, std::string> parse_metadata(const json& value, const std::string& file) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) throw CheckpointError("{}: __metadata__ is no object of strings", file);
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) throw CheckpointError("{}: __metadata__ key `{}` is no string", file, key);
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// Bytes of shape x dtype. Sizes that overflow beside a zero are refused too: strides could not be computed.
int64_t expected_bytes(const TensorInfo& info, int64_t bits, const std::string& file) {
  int64_t total = bits;
  bool empty = false, overflow = false;
  for (int64_t size : info.shape) {
    empty |= size == 0;
    overflow |= __builtin_mul_overflow(total, std::max<int64_t>(size, 1), &total);
  }
  if (overflow) throw CheckpointError("{}: tensor `{}`: shape [{}] is too large", file, info.name, fmt::join(info.shape, ", "));
  if (empty) return 0;
  if (total % 8 != 0)
    throw CheckpointError("{}: tensor `{}`: {} elements of {} fill no whole bytes", file, info.name, total / bits, info.dtype);
  return total / 8;
}

TensorInfo parse_tensor(const std::string& name, const json& value, const std::string& file) {
  if (!value.is_object()) throw CheckpointError("{}: tensor `{}` is described by no object", file, name);
  for (const auto& [key, ignored] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      throw CheckpointError("{}: tensor `{}` has unknown key `{}`; dtype, shape, data_offsets are accepted", file, name, key);
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) throw CheckpointError("{}: tensor `{}` has no {}", file, name, key);
  }
  const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
  if (!dtype.is_string()) throw CheckpointError("{}: tensor `{}`: dtype is no string", file, name);
  if (!shape.is_array()) throw CheckpointError("{}: tensor `{}`: shape is no list", file, name);
  if (!offsets.is_array() || offsets.size() != 2) throw CheckpointError("{}: tensor `{}`: data_offsets is no pair", file, name);

  TensorInfo info;
  info.name = name;
  info.dtype = dtype.get<std::string>();
  const Dtype* known = find_dtype(info.dtype);
  if (!known) throw CheckpointError("{}: tensor `{}` has unknown dtype `{}`", file, name, info.dtype);
  info.scalar_type = known->scalar_type;
  for (const json& size : shape) info.shape.push_back(unsigned_integer(size, file, name, "shape"));
  int64_t begin = unsigned_integer(offsets[0], file, name, "data_offsets");
  int64_t end = unsigned_integer(offsets[1], file, name, "data_offsets");
  if (end < begin) throw CheckpointError("{}: tensor `{}`: data_offsets [{}, {}] run backwards", file, name, begin, end);
  info.offset = begin;
  info.bytes = end - begin;
  if (int64_t expected = expected_bytes(info, known->bits, file); expected != info.bytes)
    throw CheckpointError("{}: tensor `{}` has {} bytes; shape [{}] of {} needs {}", file, name, info.bytes,
                          fmt::join(info.shape, ", "), info.dtype, expected);
  return info;
}

// Tensors must follow each other from byte 0 to the end of the file.
void check_contiguous(const std::vector<TensorInfo>& tensors, int64_t data_bytes, const std::string& file) {
  int64_t end = 0;
  for (const TensorInfo& info : tensors) {
    if (info.offset != end)
      throw CheckpointError("{}: tensor `{}` begins at byte {} where the tensor before it ends at {}: {}", file, info.name,
                            info.offset, end, info.offset > end ? "a hole" : "they overlap");
    end += info.bytes;
    if (end > data_bytes)
      throw CheckpointError("{}: tensor `{}` ends at byte {}, but the file has {} bytes of tensors: it is cut off", file,
                            info.name, end, data_bytes);
  }
  if (end != data_bytes) throw CheckpointError("{}: {} bytes follow the last tensor", file, data_bytes - end);
}

// The header of a file that holds these tensors in this order.
std::string header_of(const std::vector<TensorSpec>& specs, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  std::set<std::string> names = {"__metadata__"};
  for (const TensorSpec& spec : specs) {
    HP_CHECK(names.insert(spec.name).second, "tensor `{}` is saved twice into one file", spec.name);
    int64_t end = offset + volume(spec.shape) * static_cast<int64_t>(at::elementSize(spec.type));
    header.push_back(
        {spec.name, {{"dtype", safetensors_dtype(spec.type)}, {"shape", spec.shape}, {"data_offsets", {offset, end}}}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + text;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : path_(path) {
  const std::string file = path.string();
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw CheckpointError("{}: cannot be opened: {}", file, std::strerror(errno));
  struct stat status {};
  bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size_ = status.st_size;
  void* map =
      regular && size_ > 0 ? ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, descriptor, 0) : MAP_FAILED;
  int map_error = errno;
  ::close(descriptor);
  if (!regular) throw CheckpointError("{}: is no regular file", file);
  if (size_ < static_cast<int64_t>(kLengthBytes)) {
    if (map != MAP_FAILED) ::munmap(map, static_cast<size_t>(size_));
    throw CheckpointError("{}: {} bytes are too few for a safetensors file: it is cut off or another kind of file", file, size_);
  }
  if (map == MAP_FAILED) throw CheckpointError("{}: cannot be mapped: {}", file, std::strerror(map_error));
  map_ = static_cast<const uint8_t*>(map);
  try {
    parse(file);
  } catch (...) {
    ::munmap(map, static_cast<size_t>(size_));
    throw;
  }
}

void SafetensorsReader::parse(const std::string& file) {
  uint64_t length;
  std::memcpy(&length, map_, kLengthBytes);
  if (length > kMaxHeaderBytes)
    throw CheckpointError("{}: header length {} is over the limit of {} bytes: no safetensors file, or damaged", file, length,
                          kMaxHeaderBytes);
  if (length > static_cast<uint64_t>(size_) - kLengthBytes)
    throw CheckpointError("{}: header needs {} bytes, the file has {}: it is cut off", file, length + kLengthBytes, size_);
  std::string_view text(reinterpret_cast<const char*>(map_ + kLengthBytes), length);
  if (text.empty() || text[0] != '{') throw CheckpointError("{}: header does not begin with `{{`", file);
  data_ = map_ + kLengthBytes + length;

  const json header = parse_unique(text, file);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = parse_metadata(value, file);
    } else {
      tensors_.push_back(parse_tensor(name, value, file));
    }
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  check_contiguous(tensors_, size_ - static_cast<int64_t>(kLengthBytes + length), file);
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
}

SafetensorsReader::~SafetensorsReader() {
  ::munmap(const_cast<uint8_t*>(map_), static_cast<size_t>(size_));
}

const TensorInfo& SafetensorsReader::info(const std::string& name) const {
  auto found = by_name_.find(name);
  if (found == by_name_.end()) throw CheckpointError("{}: has no tensor `{}`", path_.string(), name);
  return tensors_[found->second];
}

std::span<const uint8_t> SafetensorsReader::bytes(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  return {data_ + tensor.offset, static_cast<size_t>(tensor.bytes)};
}

at::Tensor SafetensorsReader::tensor(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  return box(name, std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape);
}

at::Tensor SafetensorsReader::box(const std::string& name, const std::vector<int64_t>& offset,
                                  const std::vector<int64_t>& size) const {
  const TensorInfo& tensor = info(name);
  if (!tensor.scalar_type)
    throw CheckpointError(
        "{}: tensor `{}` has dtype {}, which this program cannot load yet; F64, F32, F16, BF16, I8 to I64, U8 to U64 and BOOL it "
        "can",
        path_.string(), name, tensor.dtype);
  HP_CHECK(offset.size() == tensor.shape.size() && size.size() == tensor.shape.size(), "box of another rank than `{}`", name);
  at::Tensor result = at::empty(size, *tensor.scalar_type);
  const std::vector<int64_t> origin(size.size(), 0);
  auto* target = static_cast<uint8_t*>(result.data_ptr());
  copy_box(size, result.element_size(), {data_ + tensor.offset, tensor.shape, offset}, {target, size, origin});
  // Any other byte in a bool is undefined behaviour wherever it is read.
  if (tensor.scalar_type == at::kBool && std::any_of(target, target + result.numel(), [](uint8_t byte) { return byte > 1; }))
    throw CheckpointError("{}: tensor `{}` is BOOL but holds bytes other than 0 and 1", path_.string(), name);
  return result;
}

const char* safetensors_dtype(at::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.scalar_type == type) return dtype.name;
  }
  throw CheckpointError("tensors of dtype {} cannot be saved", at::toString(type));
}

at::ScalarType scalar_type_of(const std::string& dtype) {
  const Dtype* known = find_dtype(dtype);
  if (!known || !known->scalar_type) throw CheckpointError("tensors of dtype {} cannot be loaded", dtype);
  return *known->scalar_type;
}

std::string write_safetensors(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                              const std::function<void(const std::string& name, const Take& take)>& give,
                              const std::map<std::string, std::string>& metadata) {
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    size_t width_a = at::elementSize(a.type), width_b = at::elementSize(b.type);
    return width_a != width_b ? width_a > width_b : a.name < b.name;
  });
  const std::string header = header_of(specs, metadata);
  file::Output output(path);
  output.write(header);
  for (const TensorSpec& spec : specs) {
    int64_t given = 0;
    give(spec.name, [&](const at::Tensor& part) {
      const at::Tensor tensor = part.detach().to(at::kCPU, spec.type).contiguous();
      HP_CHECK(tensor.dim() == static_cast<int64_t>(spec.shape.size()) &&
                   tensor.sizes().slice(std::min<size_t>(1, tensor.dim())) ==
                       at::IntArrayRef(spec.shape).slice(std::min<size_t>(1, tensor.dim())),
               "`{}` has shape [{}], not [{}]", spec.name, fmt::join(tensor.sizes(), ", "), fmt::join(spec.shape, ", "));
      output.write(tensor.const_data_ptr(), tensor.nbytes());
      given += tensor.numel();
    });
    HP_CHECK(given == c10::multiply_integers(spec.shape), "`{}` has {} elements, not the [{}] of its header", spec.name, given,
             fmt::join(spec.shape, ", "));
  }
  output.commit();
  return header;
}

std::string write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  return write_safetensors(
      path, std::move(specs), [&](const std::string& name, const Take& take) { take(by_name.at(name)); }, metadata);
}

std::map<std::string, at::Tensor> read_all(const std::filesystem::path& path) {
  SafetensorsReader reader(path);
  std::map<std::string, at::Tensor> tensors;
  for (const TensorInfo& info : reader.tensors()) tensors[info.name] = reader.tensor(info.name);
  return tensors;
}

}  // namespace hyperparallel::checkpoint
