package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// advice is text that tells an operator to run something that changes or removes what is stored.
var advice = regexp.MustCompile("nats (consumer|stream|kv) [a-z]|(delete|remove) (it|the|its) (with|durable|stream)|relay (dlq|orphans|resume|pause|schedule|later|retries) [a-z%]")

// followed names for each advice (by a piece of it) the tests that follow it and lose nothing, or that see that it is not given where it would.
var followed = map[string][]string{
	"to resume it: nats consumer resume":                      {"TestRelay_aPausedDurableIsSaidAndNoFault"},
	"stream %s does not exist":                                {"TestRun_preflightSaysNo"},
	"no stream holds subject":                                 {"TestRun_preflightSaysNo"},
	", or begin another one behind it":                        {"TestRelay_regressionNoAdviceNamesADurableThatAnInstanceUses", "TestOrphans_regressionTheAdviceForADurableLosesNothing"},
	"give them to another route: relay orphans move":          {"TestOrphans_regressionARenamedRouteOrServiceLeavesNothing"},
	", or give what it has not handled to another":            {"TestOrphans_regressionARenamedRouteOrServiceLeavesNothing"},
	"or give them to a route of this one":                     {"TestOrphans_regressionARenamedRouteOrServiceLeavesNothing"},
	"relay orphans move --":                                   {"TestOrphans_regressionARenamedRouteOrServiceLeavesNothing"},
	"publish them again, for the routes that there are":       {"TestOrphans_aRouteIsRenamed"},
	"start the route on that stream, or move them":            {"TestOrphans_aRouteIsRenamed"},
	", or make dead letters of them":                          {"TestOrphans_regressionWhatNobodyTakesIsShownAndComesBack"},
	"relay orphans move takes messages from the durable":      {"TestPermissions_whatMovingADurableNeeds"},
	"change it with `nats stream edit`":                       {"TestEnsure_setsBackWhatIsDangerous"},
	"stop relay, keep a copy":                                 {"TestRelay_saysWhatOfItsOwnStreamsItCannotChange"},
	"this version of relay does not know what it does":        {"TestRelay_saysWhatOfItsOwnStreamsItCannotChange"},
	"the schedule stands still; to begin it anew":             {"TestSchedule_regressionTheAdviceForAnUnreadableRecordIsTaken"},
	"cannot be published; each is tried again, a minute":      {"TestLater_regressionOnesThatNobodyTakesHoldUpNoOther"},
	"the line has no body: write it with relay dlq export":    {"TestDLQ_exportAndImport"},
	"run relay with it once, or publish the message":          {"TestReplay_regressionImportedFromAnotherStreamStays"},
	"which never ran there or was removed":                    {"TestOrphans_regressionWhatNobodyTakesIsShownAndComesBack"},
	"is suspended: %s; its messages wait until one succeeds":  {"TestOperate_statusPauseResume"},
	"is suspended: %s; once the cause is fixed":               {"TestOperate_statusPauseResume"},
	"more waits for routes that are not here":                 {"TestRelay_regressionTheLogNamesAFewOrphans", "TestOrphans_aRouteIsRenamed"},
	"nothing is removed: check whether its route":             {"TestFill_retryStreamByAge", "TestOrphans_aRouteIsRenamed"},
	"at 100 %, failing messages are not parked":               {"TestFill_retryStream"},
	"to make dead letters of them, use relay retries discard": {"TestOrphans_regressionWhatNobodyTakesIsShownAndComesBack"},
	"an operator needs more for":                              {"TestPermissions_whatLacksIsSaid"},
	"a browser cannot edit this body":                         {"TestReplay_edit"},
	"start the route with partitions again":                   {"TestPartitions_aRouteGetsThemAndLosesThem"},
	"the route no longer has partitions here":                 {"TestPartitions_aRouteGetsThemAndLosesThem"},
	"the server has copied nothing from stream %s":            {"TestRoute_copiesThatStandStillAreTold"},
	"Messages that wait for routes that do not exist,":        {"TestOrphans_aRouteIsRenamed"},
}

// Every advice that the service gives is followed by a test.
func TestAdvice_allOfItIsTried(t *testing.T) {
	t.Parallel()
	have := tests(t)
	used := map[string]bool{}
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() && (rel == "cmd/relay/program" || rel == "cmd/relay/internal/cli" || rel == "cmd/relay/internal/command" || rel == "cmd/relay/internal/routes" || rel == "cmd/relay/internal/waiting" || rel == "examples" || strings.HasPrefix(d.Name(), ".") && rel != ".") {
			return filepath.SkipDir // the help of commands names commands
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil || !advice.MatchString(text) {
				return true
			}
			found++
			known := false
			for piece := range followed {
				if strings.Contains(text, piece) {
					known, used[piece] = true, true
				}
			}
			if !known {
				t.Errorf("%s: no test follows this advice: %s", fset.Position(lit.Pos()), text)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 15 {
		t.Errorf("%d pieces of advice found", found)
	}
	for piece, names := range followed {
		if !used[piece] {
			t.Errorf("nobody gives this advice any more: %s", piece)
		}
		for _, name := range names {
			if !have[name] {
				t.Errorf("%q is followed by %s, which is not there", piece, name)
			}
		}
	}
}
