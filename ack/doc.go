package ack
