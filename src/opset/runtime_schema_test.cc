// Our contracts against the schemas that the released runtime itself lists.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "opset/operators.h"
#include "tests/support/python.h"

namespace sluice {
namespace {

// The runtime's spelling of an element type; empty for those we do not know.
std::optional<DType> dtype_of(const std::string& name) {
  static const std::map<std::string, DType> names{{"float", DType::f32},         {"double", DType::f64},
                                                  {"float16", DType::f16},       {"bfloat16", DType::bf16},
                                                  {"int64", DType::i64},         {"int32", DType::i32},
                                                  {"int16", DType::i16},         {"int8", DType::i8},
                                                  {"uint64", DType::u64},        {"uint32", DType::u32},
                                                  {"uint16", DType::u16},        {"uint8", DType::u8},
                                                  {"bool", DType::boolean},      {"float8e4m3fn", DType::f8_e4m3},
                                                  {"float8e5m2", DType::f8_e5m2}};
  const auto found = names.find(name);
  return found == names.end() ? std::nullopt : std::optional(found->second);
}

constexpr DType kAllTypes[] = {DType::f64,     DType::f32, DType::f16, DType::bf16, DType::f8_e4m3,
                               DType::f8_e5m2, DType::i64, DType::i32, DType::i16,  DType::i8,
                               DType::u64,     DType::u32, DType::u16, DType::u8,   DType::boolean};

const std::map<std::string, Json>& schemas() {
  static const std::map<std::string, Json> all = [] {
    const auto python = testing_python::run("dump_schemas.py", {"23"});
    if (python.status != 0) throw std::runtime_error("dump_schemas.py failed: has scripts/setup run?");
    std::map<std::string, Json> out;
    const Json listed = parse_json(python.output, "schemas");
    for (const Json& schema : listed.as_array("schemas")) {
      out.emplace(schema.at("domain", "").as_string("") + "." + schema.at("name", "").as_string(""), schema);
    }
    return out;
  }();
  return all;
}

// What only we serve: not in the runtime.
bool is_ours(const OperatorSpec& spec) { return spec.domain == kSluiceDomain || spec.name == "VarlenLinearAttention"; }

const Json& schema_of(const OperatorSpec& spec) {
  return schemas().at(std::string(spec.domain) + "." + std::string(spec.name));
}

bool same_default(const AttributeSpec& ours, const Json& theirs) {
  switch (ours.kind) {
    case AttributeKind::integer:
      return ours.integer == theirs.as_int(ours.name);
    case AttributeKind::number:
      return ours.number == static_cast<float>(theirs.as_number(ours.name));
    case AttributeKind::text:
      return ours.text == theirs.as_string(ours.name);
    case AttributeKind::integers:
      break;
  }
  return false;
}

void expect_attributes(const OperatorSpec& spec) {
  std::set<std::string> theirs;
  for (const Json& a : schema_of(spec).at("attributes", "").as_array("")) {
    const std::string name = a.at("name", "").as_string("");
    theirs.insert(name);
    const AttributeSpec* ours = spec.attribute(name);
    ASSERT_NE(ours, nullptr) << name << " is missing";
    const std::map<std::string, AttributeKind> kinds{{"INT", AttributeKind::integer},
                                                     {"FLOAT", AttributeKind::number},
                                                     {"STRING", AttributeKind::text},
                                                     {"INTS", AttributeKind::integers}};
    EXPECT_EQ(ours->kind, kinds.at(a.at("type", "").as_string(""))) << name;
    const bool required = a.at("required", "").as_bool("");
    EXPECT_EQ(ours->has_default == AttributeSpec::Default::required, required) << name;
    const Json* value = a.find("default");
    EXPECT_EQ(ours->has_default == AttributeSpec::Default::value, value != nullptr) << name;
    EXPECT_TRUE(value == nullptr || same_default(*ours, *value)) << name;
  }
  for (const AttributeSpec& a : spec.attributes) EXPECT_TRUE(theirs.contains(std::string(a.name))) << a.name;
}

void expect_ports(const OperatorSpec& spec, std::span<const PortSpec> ours, const Json::Array& theirs) {
  // RMSNormalization-23 and the like: every port of the runtime is ours, in its order, except optional ones at the end.
  ASSERT_LE(ours.size(), theirs.size());
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    const std::string option = theirs[i].at("option", "").as_string("");
    if (i >= ours.size()) {
      EXPECT_EQ(option, "Optional") << i;
      continue;
    }
    EXPECT_EQ(ours[i].name, theirs[i].at("name", "").as_string("")) << i;
    const std::map<std::string, Presence> presences{
        {"Single", Presence::required}, {"Optional", Presence::optional}, {"Variadic", Presence::variadic}};
    EXPECT_EQ(ours[i].presence, presences.at(option)) << ours[i].name;
    std::set<DType> allowed;
    for (const Json& type : theirs[i].at("types", "").as_array("")) {
      if (const auto dtype = dtype_of(type.as_string(""))) allowed.insert(*dtype);
    }
    for (const DType dtype : kAllTypes) {
      const bool ours_allows = spec.allowed(ours[i].type).contains(dtype);
      const bool f32_is_ours = &spec == &kPagedAttention && dtype == DType::f32;
      // Of ai.onnx we list the types we use; of com.microsoft all.
      const bool fits = spec.domain == kMicrosoftDomain ? ours_allows == allowed.contains(dtype)
                                                        : !ours_allows || allowed.contains(dtype);
      EXPECT_TRUE(fits || (f32_is_ours && ours_allows)) << ours[i].name << " " << dtype_name(dtype);
    }
  }
}

// One test, for the runtime is asked once a process.
TEST(RuntimeSchemas, AgreeWithOurContracts) {
  for (const OperatorSpec* spec : all_operators()) {
    const std::string key = std::string(spec->domain) + "." + std::string(spec->name);
    SCOPED_TRACE(key);
    ASSERT_EQ(schemas().contains(key), !is_ours(*spec));
    if (is_ours(*spec)) continue;
    expect_attributes(*spec);
    expect_ports(*spec, spec->inputs, schema_of(*spec).at("inputs", "").as_array(""));
    expect_ports(*spec, spec->outputs, schema_of(*spec).at("outputs", "").as_array(""));
    EXPECT_EQ(spec->since_version, schema_of(*spec).at("since_version", "").as_int(""));
  }
}

}  // namespace
}  // namespace sluice
