package route

import "github.com/relaymq/relay/internal/orders"

func (st *Standstill) Obey(order orders.Order) { st.paused.Obey(order, st.Group, st.Log) }
