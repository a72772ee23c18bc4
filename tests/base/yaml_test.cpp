#include "base/yaml.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace hyperparallel::yaml {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// One key of a map parsed from text, with what was found wrong.
struct Parsed {
  explicit Parsed(const std::string& text) : root(parse_yaml(text, "a.yaml", problems)) {}
  const Node& operator[](const char* key) { return *root.find(key); }
  Problems problems;
  Node root;
};

TEST(Yaml, KnowsLineAndDottedKeyOfEveryValue) {
  Parsed yaml("# comment\na: 1\nb:\n  c: [10,\n     20]\n  d:\n    - e: x\n");
  EXPECT_THAT(yaml.problems.errors(), IsEmpty());
  EXPECT_EQ(yaml["b"].find("c")->items[1].complaint("m"), "a.yaml:5: b.c[1]: m");
  EXPECT_EQ(yaml["b"].find("d")->items[0].find("e")->complaint("m"), "a.yaml:7: b.d[0].e: m");
}

TEST(Yaml, ReadsJsonIndentedOrCompact) {
  for (const char* text :
       {"{\"a\":1e-20,\"b\":{\"c\":[1,2],\"d\":null},\"e\":\"x\\u00e9\\/y\",\"f\":true}",
        "{\n\t\"a\": 1e-20,\n\t\"b\": {\n\t\t\"c\": [\n1,\n2],\n\"d\": null\n},\n\"e\": \"x\\u00e9\\/y\", \"f\": true\n}\n"}) {
    Parsed json(text);
    EXPECT_THAT(json.problems.errors(), IsEmpty());
    EXPECT_EQ(to_number(json["a"], json.problems), 1e-20);
    EXPECT_EQ(to_integers(*json["b"].find("c"), json.problems), (std::vector<int64_t>{1, 2}));
    EXPECT_TRUE(json["b"].find("d")->is_null());
    EXPECT_EQ(to_text(json["e"], json.problems), "x\u00e9/y");
    EXPECT_EQ(to_boolean(json["f"], json.problems), true);
    EXPECT_THAT(json.problems.errors(), IsEmpty());
  }
}

TEST(Yaml, DuplicateKeysNameBothLines) {
  Parsed yaml("a: 1\nb:\n  c: 2\n  c: 3\na: 4\n");
  EXPECT_THAT(yaml.problems.errors(), ElementsAre("a.yaml:4: b.c: duplicate key, given before in line 3",
                                                  "a.yaml:5: a: duplicate key, given before in line 1"));
}

TEST(Yaml, SyntaxErrorsNameLineAndColumn) {
  Parsed yaml("a: 1\nb: [1, 2\nc: 3\n");
  ASSERT_EQ(yaml.problems.errors().size(), 1u);
  EXPECT_THAT(yaml.problems.errors()[0], HasSubstr("a.yaml:"));
}

TEST(Yaml, EndlessAndDeepDocumentsAreRefused) {
  EXPECT_THAT(Parsed("a: &a [*a]\n").problems.errors(), testing::Not(IsEmpty()));
  EXPECT_THAT(Parsed(std::string(500, '[') + std::string(500, ']')).problems.errors(), testing::Not(IsEmpty()));
  EXPECT_THAT(Parsed("a: 1\n---\nb: 2\n").problems.errors(), ElementsAre(HasSubstr("holds 2 documents")));
}

TEST(Yaml, NumbersAreReadAsWritten) {
  Parsed yaml("a: 1e-4\nb: -3\nc: 2.5E3\nd: +7\ne: .5\n");
  EXPECT_EQ(to_number(yaml["a"], yaml.problems), 1e-4);
  EXPECT_EQ(to_integer(yaml["b"], yaml.problems), -3);
  EXPECT_EQ(to_number(yaml["b"], yaml.problems), -3.0);
  EXPECT_EQ(to_number(yaml["c"], yaml.problems), 2500.0);
  EXPECT_EQ(to_integer(yaml["d"], yaml.problems), 7);
  EXPECT_EQ(to_number(yaml["e"], yaml.problems), 0.5);
  EXPECT_THAT(yaml.problems.errors(), IsEmpty());
}

TEST(Yaml, NothingIsConvertedSilently) {
  Parsed yaml(
      "quoted: \"1e-4\"\nyes: yes\nhalf: 1.5\nbig: 99999999999999999999\nnan: .nan\ninf: inf\nhex: 0x10\nlist: [1]\ntwo: 1 2\n");
  for (const char* key : {"quoted", "yes", "half", "big", "nan", "inf", "hex", "list", "two"}) {
    EXPECT_EQ(to_integer(yaml[key], yaml.problems), std::nullopt) << key;
  }
  for (const char* key : {"quoted", "yes", "nan", "inf", "hex", "list", "two"}) {
    EXPECT_EQ(to_number(yaml[key], yaml.problems), std::nullopt) << key;
  }
  for (const char* key : {"quoted", "yes", "half", "list"}) EXPECT_EQ(to_boolean(yaml[key], yaml.problems), std::nullopt) << key;
  EXPECT_EQ(yaml.problems.errors().size(), 9u + 7 + 4);
  EXPECT_EQ(yaml.problems.errors()[0],
            "a.yaml:1: quoted: expected a whole number, found the text \"1e-4\" in quotes; remove the quotes");
  EXPECT_EQ(yaml.problems.errors()[1], "a.yaml:2: yes: expected a whole number, found the text \"yes\"");
}

TEST(Yaml, TextThatLooksLikeAnotherTypeNeedsQuotes) {
  Parsed yaml("a: 12\nb: \"12\"\nc: true\nd: word\ne: ''\n");
  EXPECT_EQ(to_text(yaml["b"], yaml.problems), "12");
  EXPECT_EQ(to_text(yaml["d"], yaml.problems), "word");
  EXPECT_EQ(to_text(yaml["e"], yaml.problems), "");
  EXPECT_THAT(yaml.problems.errors(), IsEmpty());
  EXPECT_EQ(to_text(yaml["a"], yaml.problems), std::nullopt);
  EXPECT_EQ(to_text(yaml["c"], yaml.problems), std::nullopt);
}

TEST(Yaml, RangesAreToldInWords) {
  Parsed yaml("a: 0\n");
  to_integer(yaml["a"], yaml.problems, {.min = 1});
  to_number(yaml["a"], yaml.problems, {.min = 0, .max = 1, .above = true});
  EXPECT_EQ(to_number(yaml["a"], yaml.problems, {.min = 0}), 0.0);
  EXPECT_THAT(yaml.problems.errors(), ElementsAre("a.yaml:1: a: expected a whole number at least 1, found the number 0",
                                                  "a.yaml:1: a: expected a number above 0 to 1, found the number 0"));
}

TEST(MapReader, ReportsUnknownKeysWithTheNearest) {
  Parsed yaml("steps: 3\nsede: 5\n");
  MapReader reader(yaml.root, yaml.problems);
  int64_t steps = 0, seed = 1;
  EXPECT_TRUE(reader.read("steps", steps));
  EXPECT_FALSE(reader.read("seed", seed));
  reader.finish();
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(seed, 1);
  EXPECT_THAT(yaml.problems.errors(), ElementsAre("a.yaml:2: unknown key sede; the nearest known key is seed"));
}

TEST(Problems, AreThrownTogether) {
  Problems problems;
  EXPECT_NO_THROW(problems.throw_if_any());
  problems.error("first");
  problems.error("second {}");
  try {
    problems.throw_if_any();
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("2 errors"), HasSubstr("first"), HasSubstr("second {}")));
  }
}

TEST(NearestWord, FindsTyposAndSwapsButNothingFar) {
  const std::vector<std::string> known = {"optimizer", "train", "tp", "steps"};
  EXPECT_EQ(nearest_word("optimzer", known), "optimizer");
  EXPECT_EQ(nearest_word("pt", known), "tp");
  EXPECT_EQ(nearest_word("stpes", known), "steps");
  EXPECT_EQ(nearest_word("completely_different", known), "");
}

}  // namespace
}  // namespace hyperparallel::yaml
