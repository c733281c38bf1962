//! Writes one script: it creates its first files, then executes its tasks in a random order.

use std::fmt::Write;

use sim::Rng;

/// A task of a script: its shell commands, and how often they occur in each round. `@` in the commands is replaced by
/// the number of the task, so that tasks use different files and do not depend on each other. The output of a task is
/// the same on every storage.
struct SdetScriptTask {
    in_round: u32,
    commands: &'static str,
}

/// The tasks of a round, 21 in all: mostly editing, viewing and copying, and one each of compiling
/// and of formatting.
const TASKS: [SdetScriptTask; 12] = [
    SdetScriptTask {
        in_round: 1,
        commands: "mkdir -p tmp/d@/a/b/c tmp/d@/e && touch tmp/d@/a/b/c/f",
    },
    SdetScriptTask { in_round: 2, commands: "cp -r src tmp/copy@ && ls -1 tmp/copy@ | wc -l" },
    SdetScriptTask {
        in_round: 3,
        commands: "printf '%s\\n' '$a' 'note @ on storage' . 'g/the/s//THE/g' '2,4p' w q | ed -s doc/tPICK",
    },
    SdetScriptTask { in_round: 3, commands: "grep -c -e storage -e THE doc/* || true" },
    SdetScriptTask { in_round: 2, commands: "sort doc/t* > tmp/sorted@ && cksum < tmp/sorted@" },
    SdetScriptTask { in_round: 1, commands: "find . -type f -name '*.c' | sort" },
    SdetScriptTask { in_round: 3, commands: "ls -1R src doc | cksum" },
    SdetScriptTask {
        in_round: 1,
        commands: "sed 's/SAID/@/' src/main.c > tmp/p@.c && cc -O -o tmp/p@ tmp/p@.c && tmp/p@",
    },
    SdetScriptTask {
        in_round: 1,
        commands: "nroff doc/paper.roff > tmp/paper@ && cksum < tmp/paper@",
    },
    SdetScriptTask {
        in_round: 1,
        commands: "awk '{ for (i = 1; i <= NF; i++) n[$i]++ } END { for (w in n) print n[w], w }' doc/t* | sort -rn | head -5",
    },
    SdetScriptTask {
        in_round: 2,
        commands: "cp doc/tPICK tmp/was@ && (diff doc/t0 tmp/was@ || true) | cksum",
    },
    SdetScriptTask {
        in_round: 1,
        commands: "tar -cf tmp/@.tar doc && tar -tf tmp/@.tar | wc -l && rm -rf tmp/@.tar tmp/copy* tmp/d*",
    },
];

/// Number of text files in the folder `doc`.
const TEXTS: u64 = 5;

/// The commands at the start of a script. They make five texts, three sources, and a paper to
/// format. awk makes random parts of them from a seed.
const BEGIN: &str = "\
set -eu
export LC_ALL=C
mkdir src doc tmp
for t in 0 1 2 3 4; do
  awk -v seed=\"SEED$t\" 'BEGIN {
    split(\"the of a storage disk far line write read block time user work day cache log\", w, \" \")
    x = seed % 65521
    for (i = 0; i < 120; i++) {
      s = \"\"
      for (j = 0; j < 9; j++) { x = (x * 171 + 11213) % 53125; s = s w[1 + x % 16] \" \" }
      print s
    }
  }' > doc/t$t
done
(echo .ll 60; echo .ce 1; echo Of storage; sed 'n;n;n;s/^/.br\\n/' doc/t1) > doc/paper.roff
cat > src/main.c <<'END'
#include <stdio.h>
int main(void) { long i, x = SAID; for (i = 0; i < 1000; i++) x = (x * 31 + i) % 65521; printf(\"%ld\\n\", x); return 0; }
END
cp src/main.c src/more.c
cp src/main.c src/other.c
";

/// The commands at the end of a script. They read the remaining files from the storage and print
/// their checksums.
const END: &str = "rm -rf tmp\ncat doc/* | cksum\ntar --format=ustar --mtime=@0 --owner=0 --group=0 --sort=name -cf kept.tar src doc\n";

pub(super) fn write(seed: u64, number: u32, rounds: u32) -> String {
    let mut rng = Rng::new(seed ^ u64::from(number).rotate_left(32));
    let mut script = BEGIN.replace("SEED", &rng.below(10_000).to_string());
    let mut done = 0;
    for _ in 0..rounds {
        let each = TASKS.iter().flat_map(|task| (0..task.in_round).map(move |_| task.commands));
        let mut round: Vec<&str> = each.collect();
        rng.shuffle(&mut round);
        for commands in round {
            done += 1;
            let commands = commands.replace("PICK", &rng.below(TEXTS).to_string());
            let commands = commands.replace('@', &done.to_string());
            writeln!(script, "{commands}").expect("a String takes all");
        }
    }
    script + END
}
