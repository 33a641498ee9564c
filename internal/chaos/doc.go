// Package chaos is the fault harness of relay: it runs the real program against real nats-servers, breaks what can be
// broken, and checks that nothing was lost. It is test code: nothing of the product imports it.
//
// # The parts
//
//	producer ──▶ nats-server ──▶ relay ──▶ handler      each a process of its own
//	   │             ▲             ▲          │
//	   │ confirmed   └── nemesis ──┘          │ starts and ends
//	   ▼                                      ▼
//	 ledger ──────────▶ checker ◀────────── ledger
//	                       ▲
//	      stream, durable, attempts and dead letters, once at rest
//
// A [World] is one run: a directory, processes, a seed and the log of what was done. Truth is kept outside relay: the
// producer notes each publish that the server confirmed ([Pub]), handlers append their starts and ends to a file that is
// theirs (package ledger). [World.Check] joins them and names what is wrong: see [Class].
//
// # Seeds
//
// Whatever is random in a run comes from its seed, which it prints. The same seed gives the same faults at the same
// places of the schedule; what the machine makes of it is not repeated.
//
// # Rows
//
// The rows are Go tests named for the fault matrix, TestF01_… . `go test` runs a slice of each; with the build tag chaos
// (make chaos) they run at their figures.
//
// # Rows that have their tests elsewhere
//
// Faults for which no process has to be killed are tested beside the code:
//
//	F11, F12  no descriptors, no more processes                    exec: TestHandle_noDescriptors; process: TestStarts_failByErrno
//	F29, F102 a key file is replaced, credentials are refused      natsconn: TestConn_nkeyIsReadAgain, TestConn_authFailsThenIsRepaired
//	F31       too large for what was asked, or for max_pending     consumer: TestRelay_regressionLargeMessagesAfterSmallOnesDoNotCostTheConnection,
//	                                                               TestRelay_messageLargerThanMaxPayloadIsHandled
//	F40       a name that does not resolve; addresses per dial     consumer/handler/http: TestHandle_errorsNameThePhase, TestHandle_refusedAddresses
//	F45       a store that vanishes or cannot be read              natsd: TestServer_endsWhenItsStoreIsGone, TestStart_neverAFreshStoreOverAnUnreadableOne
//	F50       a log sink that fails or blocks                      logging: TestWriter_blockedSinkBlocksNobody, TestWriter_sinkThatFails
//	F56       settled twice                                        ack: TestDelivery_isSettledOnce
//	F59       exec: exit codes, signals, not executable            TestHandle_exitStatuses, TestHandle_killedBySignal, TestNew_commandsThatCannotBeRun,
//	                                                               TestHandle_programGoneOrBroken
//	F61       exec: much output, stdin unread                      TestHandle_muchOutput, TestHandle_stdinUnread, TestHandle_stdinUnreadUntilTheTimeout
//	F68       http: refused, reset, TLS, time-outs by phase        TestHandle_errorsNameThePhase, TestHandle_https, TestHandle_clientCertificate
//	F69       http: slow, endless and huge answers                 TestHandle_boundedAnswers, TestHandle_slowReplyEndsWithCtx
//	F70       http: redirects                                      TestHandle_redirectsAreNotFollowed
//	F71       http: Retry-After in all forms                       TestHandle_retryAfter, TestRetryAfter, FuzzRetryAfter;
//	                                                               supervisor: TestRetryAfter_pausesTheRouteOrTheKeyClamped
//	F72       http: every status, odd answers, HTTP/2 failures     TestHandle_everyStatus, TestHandle_answersOfOddForm, TestHandle_http2Failures
//	F75       http: the server closes the idle connection          TestHandle_serverClosedTheIdleConnection, TestHandle_keepAliveRace
//	F77       forward: no target, full, forbidden, large, loops    TestHandle_noStream, TestHandle_fullStream, TestHandle_missingPermission,
//	                                                               TestHandle_tooLarge, TestHandle_loopEnds; config: TestRings
//	F87       a million keys, one in a hundred failing             supervisor: TestKeys_aMillionWithOneInAHundredFailingLeaveNothingBehind
//	F93       replay killed, cancelled, two operators              program: TestReplay_killedAndResumed; dlq: TestRun_oneRunnerAtATime,
//	                                                               TestRun_cancelledFromElsewhereAndResumed
//	F94, F96  replay with a rate; of what cannot be replayed       dlq: TestRun_rate, TestRun_refuses; program: TestReplay_unknownRouteIsRefused
//	F97, F98  overlaps with relay's own subjects; bad files        config: TestLoad_golden, TestLoad_filesThatAreNone, TestLoad_hostileFilesEndSoon, FuzzLoad
//	F103      admin: slow headers, many connections, large ones    admin: TestServer_slowHeaders, TestServer_connectionLimit, TestServer_tooManyHeaderBytes
//	I09       panics end one child only                            consumer: TestRelay_panicsByTheTenThousand
//
// With the tag chaos there are ten kills of a replay and a replay of 100,000 beside live traffic (cmd/relay/program, TestChaos_…).
//
// # Clean up
//
// Every process has its own group and dies with the harness (Pdeathsig). Namespaces, mounts and cgroups carry the
// harness's pid in their names; those of a harness that is gone are removed when the next one starts. Traffic stays on
// loopback, or in network namespaces that the run made.
package chaos
