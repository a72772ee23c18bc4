// Which layouts the parity tests run: made from a table of choices, so that a new choice is one line.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel::parity {

struct Layout {
  std::string name;
  int ranks = 1;
  std::vector<std::string> overrides;  // of the configuration
  // What pairs are made of: the value of every choice, and what follows from them.
  std::vector<std::string> traits = {};
  std::vector<std::string> data = {};  // overrides that the one rank has, too
};
void PrintTo(const Layout& layout, std::ostream* out);

// Every legal layout of so many ranks: all combinations of the table's choices but those that the mesh or the program's builder
// refuses, and those in which a choice makes no difference.
std::vector<Layout> all_layouts(int ranks);
// A subset of the layouts in which every pair of traits that occurs in any of them occurs: always the same one, the layout with
// the most new pairs first.
std::vector<Layout> pairwise_cover(const std::vector<Layout>& layouts);

// Of all layouts of so many ranks, made once.
const std::vector<Layout>& cover_of(int ranks);

// HYPERPARALLEL_PARITY=all in the environment (`./test --parity=all`): every layout of 1, 2 and 4 ranks and a pairwise cover
// of 8. Otherwise a fixed part that fits a build machine's minutes: of the covers of 4 and 8 the six and two layouts with the
// most pairs.
bool run_all();
// The layouts of one run of the matrix.
std::vector<Layout> matrix_layouts();

}  // namespace hyperparallel::parity
