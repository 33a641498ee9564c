// Package takeover gives back what somebody else had in hand: the holder of a leased durable before this one, or an instance that died. Nobody else
// settles these messages any more, and without it they would come again only after AckWait.
//
// What a dead instance had in hand is found out by a [Question] to all that live: it is what none of them has. While one does not answer, nothing is given
// back.
//
// The server does not tell which messages are outstanding, and ignores a NAK of one that is not. So all from the ack floor to what was delivered are
// named, or, when that is far, those that the holder noted ([Takeover.NoteInHand]) and what was delivered since. A NAK may be lost by a change of the
// leader. What it was for is asked for again a few times ([Takeover.StillMissing]), and then comes after AckWait.
package takeover
